"""Which tokens a draft's output layer keeps (`specexport build --draft-vocabulary`)."""
