"""OpenVINO Model Server's files with the options of models: graph.pbtxt and config.json."""
