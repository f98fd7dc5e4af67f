"""The encodings of log files that readers share: messages, logs of records, hyperparameters."""
