# One image for both commands: `fetch-weights` fills the volume, `serve` (the default) answers from it.

# The named build context `wheels` replaces this empty stage where torch's wheel lies on disk already:
#   docker buildx build --build-context wheels=FOLDER --load -t attention-service .
FROM scratch AS wheels

FROM python:3.11-slim-bookworm

RUN groupadd --gid 10001 attention \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin attention \
 && install -d -o 10001 -g 10001 /cache

# For the labels of pictures: Chinese, Japanese, Korean, emoji, Thai, Hindi; matplotlib brings the rest
RUN apt-get -qq update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
      fonts-wqy-microhei fonts-symbola fonts-tlwg-loma-ttf fonts-lohit-deva \
 && rm -rf /var/lib/apt/lists/*

ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# torch comes first and alone, from one place, so that pip never takes the CUDA build that PyPI offers for Linux.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    if ls /wheels/torch-*.whl >/dev/null 2>&1; then set -- --no-index --find-links /wheels; \
    else set -- --index-url "$TORCH_INDEX"; fi; \
    pip install --no-cache-dir --no-deps -c /constraints.txt "$@" torch

# Dependencies before code: a change of code rebuilds only the last, small layer. EXTRAS=corpus adds Ray.
ARG EXTRAS=
RUN --mount=type=bind,source=pyproject.toml,target=/pyproject.toml \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=cache,target=/root/.cache/pip \
    python -c 'import sys, tomllib; project = tomllib.load(open("/pyproject.toml", "rb"))["project"]; \
               more = [one for extra in sys.argv[1:] for one in project["optional-dependencies"][extra]]; \
               print(*project["dependencies"], *more, sep="\n")' $EXTRAS > /tmp/requirements.txt \
 && pip install -c /constraints.txt -r /tmp/requirements.txt \
 && rm /tmp/requirements.txt

RUN --mount=type=bind,target=/src,rw \
    --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps /src

ENV HOST=0.0.0.0 \
    PORT=8000 \
    ATTENTION_CACHE=/cache \
    HF_HOME=/cache/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib
EXPOSE 8000
VOLUME /cache
USER 10001:10001

# Healthy means ready: the model is loaded. Not urllib.request, which would ask a proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=300s --start-interval=2s \
  CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=4); c.request('GET', '/health/ready'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["attention-service"]
CMD ["serve"]
