"""OpenVINO Model Server's files with options of models: graph.pbtxt and config.json."""
