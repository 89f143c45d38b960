"""OpenVINO Model Server's endpoints: the state of every model, reading the configuration again, KServe's health."""
