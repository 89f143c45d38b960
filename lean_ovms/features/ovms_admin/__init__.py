"""The endpoints of OpenVINO Model Server: the states of models, reloading the configuration, and KServe's health
checks.
"""
