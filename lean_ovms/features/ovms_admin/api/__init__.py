"""The endpoints of OpenVINO Model Server."""
