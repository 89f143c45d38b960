# docker build -t lean_ovms .
# docker run --rm --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#   -p 8000:8000 -v "$PWD/models:/models:ro" lean_ovms --config_path /models/config.json
# Without options: the models that /models/config.json names, or else all models in /models; with none it does not start.
# To pull models: -v "$PWD/models:/models:rw" -e HF_TOKEN, and --source_model organisation/name.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml setup.cfg setup.py README.md LICENSE ./
COPY lean_ovms lean_ovms
RUN python -m venv /opt/lean_ovms && /opt/lean_ovms/bin/pip install --no-cache-dir ".[audio,vision,sealing,kv-events]"

FROM python:3.12-slim
# A number, so that Kubernetes' runAsNonRoot can tell.
USER 10001:10001
COPY --from=build /opt/lean_ovms /opt/lean_ovms
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/tmp/hub \
    OVMS_MODEL_REPOSITORY_PATH=/models
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
# It follows the options that the container was started with: port, address, TLS, Unix socket.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m CMD ["/opt/lean_ovms/bin/lean-ovms", "healthcheck", "--pid", "1"]
ENTRYPOINT ["/opt/lean_ovms/bin/lean-ovms"]
