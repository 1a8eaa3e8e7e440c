# The studio on a CPU, or with CUDA:  docker build --build-arg TORCH=cuda -t kitestring:cuda .
# docs/docker.md says how to run it.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
# cpu: PyTorch's CPU build.  cuda: the build on PyPI, which brings the CUDA libraries with it.
ARG TORCH=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv /opt/kitestring
# The dependencies first, so that a change of the code does not install torch again.
COPY pyproject.toml constraints.txt ./
RUN set -eu; case "${TORCH}" in \
        cpu) index=https://download.pytorch.org/whl/cpu ;; \
        cuda) index=https://pypi.org/simple ;; \
        *) echo "TORCH is ${TORCH} and must be cpu or cuda" >&2; exit 1 ;; \
    esac; \
    python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt; \
    /opt/kitestring/bin/python -m pip install --extra-index-url "${index}" -c constraints.txt -r requirements.txt
COPY README.md LICENSE launch.py ./
COPY commands commands
COPY kitestring kitestring
COPY labeler labeler
COPY pipeline pipeline
COPY storage storage
RUN /opt/kitestring/bin/python -m pip install --no-deps .

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/kitestring /opt/kitestring
# /data holds workspaces and downloaded models.  A new volume takes its owner from the image.
RUN useradd --uid 1000 --create-home studio && install -d -o 1000 -g 1000 -m 700 /data
ENV PATH=/opt/kitestring/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/data/huggingface \
    KITESTRING_HOST=0.0.0.0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /data
VOLUME /data
EXPOSE 7860
# Unhealthy while /healthz answers 503: the disk refuses writes, or the journal was moved,
# replaced or cut.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
ENTRYPOINT ["kitestring"]
CMD ["serve"]
