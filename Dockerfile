# Images of opmeter. images/README.md describes the build and the stacks.
#
#   controller      plans, launches and merges; no torch
#   collector-cpu   the worker for clusters without NPUs: the controller, and torch
#   collector       the worker for NPUs, with the torch of BASE, a CANN or vLLM-Ascend image
#
# Two optional secrets stay out of the images: `pip` is a pip.conf (another index, its
# credentials), and `ca` a bundle of certificates at /run/secrets/ca that the pip.conf may name.
#
# There is no entry point: the command of a pod is `opmeter work`, which is PID 1 and reaps its
# children. Everything is written below /work; the root file system may be read-only.

ARG BASE=python:3.11-slim-bookworm
# With the secret, pip ignores its settings of root, where vLLM-Ascend's images name an index, and
# which override /etc/pip.conf. Without it, pip uses them.
ARG PIP_CONFIG_FILE=/run/secrets/pip


FROM ${BASE} AS wheel
ARG PIP_CONFIG_FILE
COPY images/requirements-build.txt /src/images/
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python3 -m venv /build && \
    /build/bin/pip install --no-cache-dir --require-hashes -r /src/images/requirements-build.txt
COPY pyproject.toml README.md LICENSE /src/
COPY collector /src/collector
COPY jobs /src/jobs
COPY opmeter /src/opmeter
RUN /build/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /dist /src


FROM ${BASE} AS user
USER 0:0
# User 1000 is HwHiAiUser on NPU hosts and owns the devices; libraries look its name up.
RUN getent passwd 1000 || useradd --uid 1000 --home-dir /work --no-create-home \
        --shell /usr/sbin/nologin opmeter; \
    install --directory --owner=1000 --group=1000 /work
# The files that tools write by default; HOME is set after pip, which reads root's settings.
ENV TMPDIR=/work \
    OPMETER_LOCKS=/work/locks \
    ASCEND_PROCESS_LOG_PATH=/work/log \
    ASCEND_WORK_PATH=/work/ascend \
    ASCEND_CACHE_PATH=/work/cache \
    TRITON_CACHE_DIR=/work/triton \
    TORCHINDUCTOR_CACHE_DIR=/work/inductor \
    XDG_CACHE_HOME=/work/cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /work


FROM user AS controller
ARG PIP_CONFIG_FILE
COPY images/requirements-controller.txt /opt/
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python3 -m venv /opt/opmeter && \
    /opt/opmeter/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
        -r /opt/requirements-controller.txt
COPY --from=wheel /dist/ /opt/opmeter/dist/
RUN /opt/opmeter/bin/pip install --no-cache-dir --no-index --no-deps /opt/opmeter/dist/*.whl
ENV PATH=/opt/opmeter/bin:$PATH HOME=/work
USER 1000:1000
ARG BASE
ARG BASE_DIGEST=""
ARG SOURCE=""
ARG REVISION=""
ARG VERSION=""
LABEL org.opencontainers.image.title="opmeter" \
      org.opencontainers.image.description="Measures every operator an LLM runs on Ascend NPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"


FROM controller AS collector-cpu
ARG PIP_CONFIG_FILE
USER 0:0
COPY images/requirements-cpu.txt /opt/
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    HOME=/root /opt/opmeter/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
        --no-deps -r /opt/requirements-cpu.txt
# This image has no torch_npu. If a volume has it, `import torch` does not load it.
ENV TORCH_DEVICE_BACKEND_AUTOLOAD=0
USER 1000:1000


FROM user AS collector
ARG PIP_CONFIG_FILE
COPY images/requirements-collector.txt /opt/
# The environment has access to torch, torch_npu and numpy of the base, which is not changed.
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python3 -m venv --system-site-packages /opt/opmeter && \
    /opt/opmeter/bin/pip install --no-cache-dir --only-binary :all: --require-hashes --no-deps \
        --ignore-installed -r /opt/requirements-collector.txt
COPY --from=wheel /dist/ /opt/opmeter/dist/
RUN /opt/opmeter/bin/pip install --no-cache-dir --no-index --no-deps /opt/opmeter/dist/*.whl
COPY --chmod=755 images/opmeter-with-cann /opt/opmeter/cann/opmeter
ENV PATH=/opt/opmeter/cann:/opt/opmeter/bin:$PATH HOME=/work
USER 1000:1000
ENTRYPOINT []
CMD ["opmeter", "--help"]
ARG BASE
ARG BASE_DIGEST=""
ARG SOURCE=""
ARG REVISION=""
ARG VERSION=""
LABEL org.opencontainers.image.title="opmeter" \
      org.opencontainers.image.description="Measures every operator an LLM runs on Ascend NPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
