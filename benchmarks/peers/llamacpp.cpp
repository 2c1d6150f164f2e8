// A runner (protocol.py) over llama.h: `llamacpp TARGET.gguf DRAFT.gguf|- THREADS CAPACITY NAME VERSION`.
//
// Speculation as in llama.cpp's own examples/speculative-simple with a draft model: k passes of the draft, one pass of the
// target over the last token and the k draft tokens, rejected rows removed from both caches. Two things are left out that
// cost that example time: sorting candidates, and running the verified tokens through the draft again.
// Without a draft model llama.cpp's own `ngram-simple` drafts.
#include "common.h"
#include "llama.h"
#include "ngram-map.h"
#include "nlohmann/json.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

using json = nlohmann::json;
using Tokens = std::vector<llama_token>;

// The n-gram length of `ngram-simple`, which never drafts fewer tokens than that: with its own default, 12, it would
// draft nothing in rounds of 4 or 8 tokens.
static const uint16_t NGRAM = 3;

// Replaces a function of a part of llama.cpp's `common` that is not linked; its log calls it, but nothing is logged.
bool tty_can_use_colors() { return false; }

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double cpu_seconds() { return (double) std::clock() / CLOCKS_PER_SEC; }

struct Decoder {
    llama_model * model = nullptr;
    llama_context * context = nullptr;
    llama_batch_ext * batch = nullptr;
    int vocabulary = 0;
    int rows = 0; // valid rows of the cache

    Decoder(const std::string & path, int threads, int capacity) {
        model = llama_model_load_from_file(path.c_str(), llama_model_default_params());
        if (!model) throw std::runtime_error("llama.cpp cannot load " + path);
        auto parameters = llama_context_default_params();
        parameters.n_ctx = capacity;
        parameters.n_batch = parameters.n_ubatch = 512;
        parameters.n_threads = parameters.n_threads_batch = threads;
        context = llama_init_from_model(model, parameters);
        if (!context) throw std::runtime_error("llama.cpp cannot make a context for " + path);
        batch = llama_batch_ext_init(context);
        vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    }

    void truncate(int count) {
        if (count >= rows) return;
        llama_memory_seq_rm(llama_get_memory(context), 0, count, -1);
        rows = count;
    }

    // Appends tokens; logits of all of them, or of the last one.
    void step(const llama_token * tokens, int count, bool all) {
        for (int start = 0; start < count; start += 512) {
            const int width = std::min(512, count - start);
            llama_batch_ext_clear(batch);
            for (int i = 0; i < width; ++i) {
                const int index = llama_batch_ext_add_token(batch, 0, tokens[start + i]);
                const llama_pos position = rows + i;
                llama_batch_ext_set_pos(batch, index, &position);
                llama_batch_ext_set_output_logits(batch, index, all || start + i == count - 1);
            }
            if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch) != 0) throw std::runtime_error("llama_process failed");
            rows += width;
        }
        llama_synchronize(context);
    }

    llama_token best(int row) const { // -1: the last one
        const float * logits = llama_get_logits_ith(context, row);
        return std::max_element(logits, logits + vocabulary) - logits;
    }
};

struct Request {
    Tokens prompt;
    int new_tokens;
    int k;
};

static json answer(const Tokens & tokens, int first_tokens, double start, double first, double cpu_first, int rounds) {
    return {{"seconds_first", first - start}, {"tokens_first", first_tokens}, {"seconds_decode", seconds() - first},
            {"cpu_decode", cpu_seconds() - cpu_first}, {"tokens", tokens}, {"rounds", rounds}};
}

static json plain(Decoder & target, const Request & request) {
    const double start = seconds();
    target.truncate(0);
    target.step(request.prompt.data(), request.prompt.size(), false);
    Tokens tokens = {target.best(-1)};
    const double first = seconds(), cpu_first = cpu_seconds();
    while ((int) tokens.size() < request.new_tokens) {
        target.step(&tokens.back(), 1, false);
        tokens.push_back(target.best(-1));
    }
    return answer(tokens, 1, start, first, cpu_first, request.new_tokens - 1);
}

// The last token, and up to k draft tokens: from the draft model, or by prompt lookup if there is none.
static Tokens proposal(Decoder * draft, const Tokens & text, int k) {
    Tokens round = {text.back()};
    if (!draft) {
        const common_ngram_simple_config config = {NGRAM, (uint16_t) k};
        const Tokens found = common_ngram_simple_draft(config, Tokens(text.begin(), text.end() - 1), text.back());
        round.insert(round.end(), found.begin(), found.end());
        return round;
    }
    draft->step(text.data() + draft->rows, text.size() - draft->rows, false); // after full acceptance it lacks two rows
    for (int i = 0; i < k; ++i) {
        if (i) draft->step(&round.back(), 1, false);
        round.push_back(draft->best(-1));
    }
    return round;
}

static json speculative(Decoder & target, Decoder * draft, const Request & request) {
    const double start = seconds();
    target.truncate(0);
    if (draft) draft->truncate(0);
    Tokens text = request.prompt;
    const size_t length = text.size();
    if (length > 1) {
        target.step(text.data(), length - 1, false);
        if (draft) draft->step(text.data(), length - 1, false);
    }
    double first = 0, cpu_first = 0;
    int first_tokens = 0, rounds = -1; // the first round ends the prefill
    while ((int) (text.size() - length) < request.new_tokens) {
        const Tokens round = proposal(draft, text, request.k);
        target.step(round.data(), round.size(), true);
        int accepted = 0;
        llama_token next = target.best(0);
        while (accepted + 1 < (int) round.size() && next == round[accepted + 1]) {
            text.push_back(next);
            next = target.best(++accepted);
        }
        text.push_back(next);
        target.truncate(text.size() - 1);
        if (draft) draft->truncate(text.size() - 1);
        if (++rounds == 0) {
            first = seconds();
            cpu_first = cpu_seconds();
            first_tokens = text.size() - length;
        }
    }
    return answer(Tokens(text.begin() + length, text.end()), first_tokens, start, first, cpu_first, rounds);
}

static json logits(Decoder & target, const json & request) {
    const Tokens tokens = request["logits_of"].get<Tokens>();
    const std::string path = request["file"];
    std::ofstream file(path, std::ios::binary);
    target.truncate(0);
    for (size_t start = 0; start < tokens.size(); start += 512) {
        const int width = std::min<size_t>(512, tokens.size() - start);
        target.step(tokens.data() + start, width, true);
        for (int row = 0; row < width; ++row) {
            file.write((const char *) llama_get_logits_ith(target.context, row), sizeof(float) * target.vocabulary);
        }
    }
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path);
    return {{"rows", tokens.size()}, {"columns", target.vocabulary}};
}

static json widths(Decoder & target, const json & request) {
    const int context = request["context"], repeats = request["repeats"];
    json found = json::object();
    for (const int width : request["widths"].get<std::vector<int>>()) {
        Tokens tokens(std::max(context, width), 5);
        target.truncate(0);
        target.step(tokens.data(), context, false);
        std::vector<double> times;
        for (int repeat = 0; repeat < repeats + 3; ++repeat) { // the first ones warm up
            const double start = seconds();
            target.step(tokens.data(), width, true);
            if (repeat >= 3) times.push_back(seconds() - start);
            target.truncate(context);
        }
        std::sort(times.begin(), times.end());
        found[std::to_string(width)] = 1e3 * times[times.size() / 2];
    }
    return {{"milliseconds", found}};
}

int main(int count, char ** values) {
    try {
        if (count != 7) throw std::runtime_error("usage: llamacpp TARGET.gguf DRAFT.gguf|- THREADS CAPACITY NAME VERSION");
        llama_log_set([](ggml_log_level level, const char * text, void *) { if (level >= GGML_LOG_LEVEL_ERROR) std::cerr << text; }, nullptr);
        llama_backend_init();
        const bool pair = std::string(values[2]) != "-";
        Decoder target(values[1], std::stoi(values[3]), std::stoi(values[4]));
        std::vector<Decoder> drafts;
        if (pair) drafts.emplace_back(values[2], std::stoi(values[3]), std::stoi(values[4]));
        std::cout << json{{"name", values[5]}, {"versions", {{"llama-cpp-python", values[6]}}}, {"speculative", true}, {"widths", true}, {"logits", true}} << std::endl;
        for (std::string line; std::getline(std::cin, line);) {
            try {
                const json request = json::parse(line);
                if (request.contains("widths")) {
                    std::cout << widths(target, request) << std::endl;
                    continue;
                }
                if (request.contains("logits_of")) {
                    std::cout << logits(target, request) << std::endl;
                    continue;
                }
                const Request parsed = {request["prompt_tokens"].get<Tokens>(), request["new_tokens"], request["k"]};
                const bool drafted = request["speculative"];
                std::cout << (drafted ? speculative(target, pair ? &drafts[0] : nullptr, parsed) : plain(target, parsed)) << std::endl;
            } catch (const std::exception & error) {
                std::cout << json{{"error", error.what()}} << std::endl;
            }
        }
    } catch (const std::exception & error) {
        std::cout << json{{"error", error.what()}} << std::endl;
        return 1;
    }
}
