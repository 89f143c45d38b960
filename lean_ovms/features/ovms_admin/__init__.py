"""The endpoints of OpenVINO Model Server: states of models, reloading the configuration, KServe's health checks."""
