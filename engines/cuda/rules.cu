// The verification rules (`engines/rules.py`) as CUDA kernels, a few launches for each; rule_kernels.py launches them.
//
// A row of logits is split into chunks, one block each. What blocks find is summed up by every block of the next
// kernel, always in the same order, so the same inputs give the same bits. All arguments take 64 bits.
// Compiled to rules.ptx by scripts/compile_rules.py.

#ifndef INFINITY  // NVRTC has no headers
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef THREADS  // fewer in tests
#define THREADS 256
#endif
#define EACH 8
#define CHUNK (THREADS * EACH)
#define BITS 4
#define CUTS ((1 << BITS) - 1)
#define MOST_ROWS 64
#define LARGEST 3.402823466e38f
// Below any temperature that makes a difference; the smallest normal number, which keeps a ratio finite.
#define LOWEST_TEMPERATURE 1e-30f
#define TINY 1.1754944e-38f

// What a row is drawn from: weights exp((logit - top) / temperature) of logits from `cut` on, if they reach `floor`.
struct Row {
    float top, temperature, floor;
    u32 cut;
};

// A number's place in the order of all floats, in which -0 and 0 are equal.
__device__ static u32 place_of(float value) {
    u32 bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ static float weight(const Row& row, float logit) {
    float scaled = (logit - row.top) / row.temperature;
    return place_of(logit) >= row.cut && scaled >= row.floor ? expf(scaled) : 0.0f;
}

__device__ static float largest(const float* values, u32 count) {
    float best = values[0];
    for (u32 index = 1; index < count; ++index) best = fmaxf(best, values[index]);
    return best;
}

__device__ static float total(const float* values, u32 count, u32 stride) {
    float sum = 0.0f;
    for (u32 index = 0; index < count; ++index) sum += values[index * stride];
    return sum;
}

// The sum of each of `count` columns of part[count][THREADS], left in part[column * THREADS].
__device__ static void add_up(float* part, u32 count) {
    for (u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        for (u32 index = threadIdx.x; index < count * half; index += THREADS) {
            u32 place = index / half * THREADS + index % half;
            part[place] += part[place + half];
        }
    }
    __syncthreads();
}

// Where the cumulative sum first exceeds `goal`, from which what lies before is taken off; else the last place of mass,
// and `goal` becomes infinite. Never a place without mass, if there is any.
__device__ static u32 descend(const float* masses, u32 count, float& goal) {
    float sum = 0.0f;
    u32 last = 0;
    for (u32 index = 0; index < count; ++index) {
        if (!(masses[index] > 0.0f)) continue;
        last = index;
        if (sum + masses[index] > goal) {
            goal -= sum;
            return index;
        }
        sum += masses[index];
    }
    goal = INFINITY;
    return last;
}

// The place within a chunk, of which each thread has the masses of EACH neighbours. All threads must call it.
__device__ static u32 draw(const float* masses, float goal) {
    __shared__ float all[CHUNK], of_threads[THREADS], of_groups[THREADS / 16];
    for (u32 index = 0; index < EACH; ++index) all[threadIdx.x * EACH + index] = masses[index];
    of_threads[threadIdx.x] = total(masses, EACH, 1);
    __syncthreads();
    if (threadIdx.x < THREADS / 16) of_groups[threadIdx.x] = total(of_threads + 16 * threadIdx.x, 16, 1);
    __syncthreads();
    u32 place = descend(of_groups, THREADS / 16, goal);
    place = 16 * place + descend(of_threads + 16 * place, 16, goal);
    return EACH * place + descend(all + EACH * place, EACH, goal);
}

// What each block finds in its chunk: the largest logit and the lowest id that has it, the sum of exp(logit - largest),
// and whether any is NaN or +inf.
extern "C" __global__ void extremes(const float* logits, u64 vocab, float* peaks, u32* ids, float* sums, u32* lost) {
    __shared__ float best[THREADS], part[2 * THREADS];
    __shared__ u32 best_id[THREADS];
    u32 tid = threadIdx.x, id = blockIdx.x * CHUNK + tid;
    float peak = -INFINITY, wrong = 0.0f;
    for (u32 at = id, index = 0; index < EACH; ++index, at += THREADS) {
        if (at >= vocab) break;
        float logit = logits[blockIdx.y * vocab + at];
        if (!(logit <= LARGEST)) wrong += 1.0f;
        if (logit > peak) peak = logit, id = at;
    }
    best[tid] = peak, best_id[tid] = id;
    for (u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (tid >= half) continue;
        float other = best[tid + half];
        u32 other_id = best_id[tid + half];
        if (other > best[tid] || (other == best[tid] && other_id < best_id[tid])) best[tid] = other, best_id[tid] = other_id;
    }
    __syncthreads();
    peak = best[0];
    float sum = 0.0f;
    for (u32 at = blockIdx.x * CHUNK + tid, index = 0; index < EACH; ++index, at += THREADS) {
        if (at < vocab && peak > -INFINITY) sum += expf(logits[blockIdx.y * vocab + at] - peak);
    }
    part[tid] = sum, part[THREADS + tid] = wrong;
    add_up(part, 2);
    if (tid) return;
    u32 place = blockIdx.y * gridDim.x + blockIdx.x;
    peaks[place] = peak, ids[place] = best_id[0], sums[place] = part[0], lost[place] = part[THREADS] > 0.0f;
}

// A search for the largest value from which on the counts (top-k) or weights (top-p) of a row reach a goal: BITS of its
// place in the order of floats a launch, from the highest on. `tried` holds, for each block, the sums from each cut on.
struct Search {
    float goal;
    u32 found, least;  // bits so far; of the weights, the cut of top-k
};

// The bits after a launch at `shift`. All threads must call it.
__device__ static u32 decided(const Search& search, const float* tried, u32 shift) {
    __shared__ float reached[CUTS];
    __shared__ u32 found;
    if (threadIdx.x < CUTS) reached[threadIdx.x] = total(tried + threadIdx.x, gridDim.x, CUTS);
    __syncthreads();
    if (!threadIdx.x) {
        u32 cut = CUTS;
        while (cut && !(reached[cut - 1] >= search.goal)) --cut;
        found = search.found | cut << shift;
    }
    __syncthreads();
    return found;
}

__device__ static bool is_on(const float* sampling, u64 vocab, u64 weighs) {
    return weighs ? sampling[2] < 1.0f : sampling[1] >= 1.0f && sampling[1] < (float)vocab;
}

// One launch of the search. masses: of each block's logits from the cut of top-k on, read by the first launch of top-p.
extern "C" __global__ void search(
    const float* logits, const float* sampling, u64 vocab, const float* peaks, u64 weighs, u64 shift, const float* masses,
    const Search* before, Search* after, const float* tried_before, float* tried
) {
    __shared__ float part[CUTS * THREADS], top;
    if (!is_on(sampling, vocab, weighs)) return;
    u32 blocks = gridDim.x, row = blockIdx.y, first = row * blocks;
    Search now = before[row];
    if (shift < 32 - BITS) now.found = decided(now, tried_before + first * CUTS, shift + BITS);
    else {
        now.found = 0;
        now.goal = weighs ? fmaxf(sampling[2], TINY) * total(masses + first, blocks, 1) : sampling[1];
    }
    if (!threadIdx.x) {
        top = largest(peaks + first, blocks);
        if (!blockIdx.x) after[row] = now;
    }
    __syncthreads();
    Row whole = {top, fmaxf(sampling[0], LOWEST_TEMPERATURE), -INFINITY, weighs ? now.least : 0};
    float sums[CUTS] = {};
    for (u32 index = 0; index < EACH; ++index) {
        u32 at = blockIdx.x * CHUNK + index * THREADS + threadIdx.x;
        if (at >= vocab) break;
        float logit = logits[row * vocab + at], mass = weighs ? weight(whole, logit) : 1.0f;
        u32 place = place_of(logit);
        for (u32 cut = 0; cut < CUTS; ++cut) sums[cut] += place >= (now.found | (cut + 1) << shift) ? mass : 0.0f;
    }
    for (u32 cut = 0; cut < CUTS; ++cut) part[cut * THREADS + threadIdx.x] = sums[cut];
    add_up(part, CUTS);
    if (threadIdx.x < CUTS) tried[(first + blockIdx.x) * CUTS + threadIdx.x] = part[threadIdx.x * THREADS];
}

// The weight of each block's logits from the cut on: of top-k alone, or `ends` of top-k, top-p and min-p, whose Row it
// writes. It decides the last launch of the search.
extern "C" __global__ void weigh(
    const float* logits, const float* sampling, u64 vocab, const float* peaks, u64 ends, const Search* before,
    Search* after, const float* tried, float* masses, Row* found
) {
    __shared__ float part[THREADS], top;
    if (!ends && !is_on(sampling, vocab, 1)) ends = 2;  // only the cut is needed
    u32 blocks = gridDim.x, row = blockIdx.y, first = row * blocks;
    Search now = before[row];
    u32 cut = is_on(sampling, vocab, ends == 1) ? decided(now, tried + first * CUTS, 0) : 0;
    if (!threadIdx.x) top = largest(peaks + first, blocks);
    __syncthreads();
    Row kept = {top, fmaxf(sampling[0], LOWEST_TEMPERATURE), -INFINITY, cut};
    if (ends == 1) kept.floor = logf(sampling[3]), kept.cut = max(cut, now.least);
    if (!threadIdx.x && !blockIdx.x) {
        if (ends == 1) found[row] = kept;
        else now.least = cut, after[row] = now;
    }
    if (ends == 2) return;
    float sum = 0.0f;
    for (u32 index = 0; index < EACH; ++index) {
        u32 at = blockIdx.x * CHUNK + index * THREADS + threadIdx.x;
        if (at < vocab) sum += weight(kept, logits[row * vocab + at]);
    }
    part[threadIdx.x] = sum;
    add_up(part, 1);
    if (!threadIdx.x) masses[first + blockIdx.x] = part[0];
}

// The rest of `select`: the probabilities, and a token by the cumulative sum of the first row's.
extern "C" __global__ void select_drawn(
    const float* logits, const float* noise, u64 vocab, const Row* rows, const float* masses, i64* token, float* probs
) {
    __shared__ float sum;
    __shared__ u32 chosen;
    __shared__ float rest;
    if (!threadIdx.x) {
        sum = total(masses, gridDim.x, 1);
        rest = noise[0] * sum;
        chosen = descend(masses, gridDim.x, rest);
    }
    __syncthreads();
    float mine[EACH];
    for (u32 index = 0; index < EACH; ++index) {
        u32 at = blockIdx.x * CHUNK + threadIdx.x * EACH + index;
        mine[index] = at < vocab ? weight(rows[0], logits[at]) : 0.0f;
        if (at < vocab) probs[at] = mine[index] / sum;
    }
    if (blockIdx.x != chosen) return;
    u32 place = chosen * CHUNK + draw(mine, rest);
    if (!threadIdx.x) token[0] = place < vocab ? place : vocab - 1;
}

struct Best {
    float top, sum;
    u32 id, lost;
};

// Of a row, from what `extremes` found in its blocks.
__device__ static Best best_of(u32 blocks, const float* peaks, const u32* ids, const float* sums, const u32* lost) {
    Best best = {peaks[0], 0.0f, ids[0], lost[0]};
    for (u32 block = 1; block < blocks; ++block) {
        if (peaks[block] > best.top) best.top = peaks[block], best.id = ids[block];
        best.lost |= lost[block];
    }
    for (u32 block = 0; block < blocks; ++block) best.sum += sums[block] * expf(peaks[block] - best.top);
    best.lost |= !(best.top >= -LARGEST);
    return best;
}

// The largest probability of the softmax and its token, as of `select_greedy`. token: not written where it is null.
extern "C" __global__ void select_best(
    u64 blocks, const float* peaks, const u32* ids, const float* sums, const u32* lost, i64* token, float* confidence
) {
    if (threadIdx.x) return;
    Best best = best_of(blocks, peaks, ids, sums, lost);
    if (token) token[0] = best.id;
    confidence[0] = best.lost ? NAN : 1.0f / best.sum;
}

__device__ static void accepted(
    u64 vocab, u32 num_accepted, u32 num_sound, i64 token, const i64* position, i64* count, i64* next, i64* next_position
) {
    count[0] = min(num_accepted, num_sound);
    next[0] = num_accepted < num_sound ? token : (i64)vocab;
    next_position[0] = position[0] + count[0] + 1;
}

// `accept_greedy`, by a thread for each of the k + 1 rows.
extern "C" __global__ void accept_best(
    u64 vocab, u64 k, u64 blocks, const float* peaks, const u32* ids, const float* sums, const u32* lost,
    const i64* tokens, const i64* position, i64* count, i64* next, i64* next_position
) {
    __shared__ Best best[MOST_ROWS];
    for (u32 row = threadIdx.x; row <= k; row += THREADS) {
        u32 first = row * blocks;
        best[row] = best_of(blocks, peaks + first, ids + first, sums + first, lost + first);
    }
    __syncthreads();
    if (threadIdx.x) return;
    u32 num_accepted = 0, num_sound = 0;
    while (num_accepted < k && tokens[num_accepted] == best[num_accepted].id) ++num_accepted;
    while (num_sound <= k && !best[num_sound].lost) ++num_sound;
    accepted(vocab, num_accepted, num_sound, best[num_accepted].id, position, count, next, next_position);
}

// Of each draft token: its probability by the target and by the draft, and how probable the first i tokens are to the
// target against the draft, capped at 1 (P_i of block verification, with P_0 = 1). All threads must call it.
struct Judged {
    float sums[MOST_ROWS], target[MOST_ROWS], draft[MOST_ROWS], ratios[MOST_ROWS];
};

__device__ static void judge(
    Judged& judged, const float* logits, u64 vocab, u32 k, u32 blocks, const Row* rows, const float* masses,
    const i64* tokens, const float* draft_probs
) {
    for (u32 row = threadIdx.x; row <= k; row += THREADS) {
        judged.sums[row] = total(masses + row * blocks, blocks, 1);
        if (row == k) break;
        u64 place = row * vocab + tokens[row];
        judged.target[row] = weight(rows[row], logits[place]) / judged.sums[row];
        judged.draft[row] = draft_probs[place];
    }
    __syncthreads();
    if (threadIdx.x) return;
    judged.ratios[0] = 1.0f;
    for (u32 index = 0; index < k; ++index) {
        float single = judged.target[index] / fmaxf(judged.draft[index], TINY);
        judged.ratios[index + 1] = fminf(judged.ratios[index] * single, 1.0f);
    }
}

// What is left of the target's probability: max(scale * target - draft, 0).
__device__ static float excess(const Row& row, float logit, float sum, float scale, float draft) {
    return fmaxf(weight(row, logit) / sum * scale - draft, 0.0f);
}

// The sum of what is left in each block of the first k rows; by tokens, scale is 1.
extern "C" __global__ void leave(
    const float* logits, u64 vocab, u64 k, u64 by_block, const Row* rows, const float* masses, const i64* tokens,
    const float* draft_probs, float* left
) {
    __shared__ Judged judged;
    __shared__ float part[THREADS];
    u32 row = blockIdx.y;
    judge(judged, logits, vocab, k, gridDim.x, rows, masses, tokens, draft_probs);
    __syncthreads();
    float scale = by_block ? judged.ratios[row] : 1.0f, sum = 0.0f;
    for (u32 index = 0; index < EACH; ++index) {
        u32 at = blockIdx.x * CHUNK + index * THREADS + threadIdx.x;
        u64 place = row * vocab + at;
        if (at < vocab) sum += excess(rows[row], logits[place], judged.sums[row], scale, draft_probs[place]);
    }
    part[threadIdx.x] = sum;
    add_up(part, 1);
    if (!threadIdx.x) left[row * gridDim.x + blockIdx.x] = part[0];
}

// Token verification: how many draft tokens stand before the first that does not.
__device__ static u32 accepted_by_token(const Judged& judged, u32 k, const float* noise) {
    u32 count = 0;
    // Strictly less: a uniform of 0 must not accept what has no probability.
    while (count < k && noise[count] * judged.draft[count] < judged.target[count]) ++count;
    return count;
}

// Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): the longest draft that is accepted as a whole.
__device__ static u32 accepted_by_block(const Judged& judged, u32 k, const float* noise, const float* lefts) {
    for (u32 count = k; count; --count) {
        float chance = judged.ratios[count];
        if (count < k) {
            float whole = lefts[count] + (1.0f - chance);
            chance = whole > 0.0f ? lefts[count] / whole : 1.0f;
        }
        if (noise[count - 1] < chance) return count;
    }
    return 0;
}

// The rest of `accept_token` and `accept_block`, in one block. blocks: of the rows.
extern "C" __global__ void accept_drawn(
    const float* logits, const float* noise, u64 vocab, u64 k, u64 blocks, u64 by_block, const Row* rows,
    const float* masses, const u32* lost, const i64* tokens, const float* draft_probs, const float* left,
    const i64* position, i64* count, i64* next, i64* next_position
) {
    __shared__ Judged judged;
    __shared__ float lefts[MOST_ROWS], goal;
    __shared__ u32 num_accepted, chosen, sound[MOST_ROWS], of_target;
    u32 tid = threadIdx.x;
    judge(judged, logits, vocab, k, blocks, rows, masses, tokens, draft_probs);
    for (u32 row = tid; row <= k; row += THREADS) {
        if (row < k) lefts[row] = total(left + row * blocks, blocks, 1);
        u32 wrong = 0;
        for (u32 block = 0; block < blocks; ++block) wrong |= lost[row * blocks + block];
        sound[row] = !wrong && rows[row].top >= -LARGEST;
    }
    __syncthreads();
    if (!tid) {
        u32 row = by_block ? accepted_by_block(judged, k, noise, lefts) : accepted_by_token(judged, k, noise);
        // Where nothing is left, both are the same distribution, and the target's is drawn from.
        of_target = row == k || !(lefts[row] > 0.0f);
        goal = noise[k] * (of_target ? judged.sums[row] : lefts[row]);
        chosen = descend((of_target ? masses : left) + row * blocks, blocks, goal);
        num_accepted = row;
    }
    __syncthreads();
    u32 row = num_accepted;
    float scale = by_block ? judged.ratios[row] : 1.0f, mine[EACH];
    for (u32 index = 0; index < EACH; ++index) {
        u32 at = chosen * CHUNK + tid * EACH + index;
        u64 place = row * vocab + at;
        if (at >= vocab) mine[index] = 0.0f;
        else if (of_target) mine[index] = weight(rows[row], logits[place]);
        else mine[index] = excess(rows[row], logits[place], judged.sums[row], scale, draft_probs[place]);
    }
    u32 token = chosen * CHUNK + draw(mine, goal);
    if (tid) return;
    u32 num_sound = 0;
    while (num_sound <= k && sound[num_sound]) ++num_sound;
    accepted(vocab, row, num_sound, token < vocab ? token : vocab - 1, position, count, next, next_position);
}
