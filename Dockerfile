# fer-vit with its model and face detector: nothing is downloaded when it runs.
#   docker build -t fer-vit .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" fer-vit predict photos
# The page and its API, at http://localhost:7860, with a health check:
#   docker build --target app -t fer-vit-app .
#   docker run --rm -p 127.0.0.1:7860:7860 fer-vit-app
# The images predict. `--build-arg EXTRAS=[torch]` adds PyTorch, for explanations and training. PyTorch as pip installs it
# contains CUDA: add `--gpus all` to run on a GPU. For a smaller image without CUDA, build with
# `--build-arg PIP_EXTRA_INDEX_URL=...`, the address that PyTorch's installation page gives for CPU builds. BASE can be
# any image with Python 3.11 or newer, for example one that has another CUDA.
ARG BASE=python:3.13-slim
FROM ${BASE} AS command
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=

RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir -c /source/constraints.txt "/source${EXTRAS}"

# With `--user` there may be no home, and some libraries write to one.
ENV HOME=/tmp
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["fer-vit"]
CMD ["--help"]

FROM command AS app
EXPOSE 7860
HEALTHCHECK --start-period=60s --interval=30s --timeout=5s CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://localhost:7860/health', timeout=4)"]
CMD ["app", "--host", "0.0.0.0"]

# The stage that is built without `--target`
FROM command
