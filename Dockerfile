# lemur on the CPU, for a user without root: docker build -t lemur . && docker run --rm -v "$PWD:/data" lemur doctor
FROM python:3.11-slim

# git: sources that are commits. bubblewrap: the second back end of the sandbox.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap git \
    && rm -rf /var/lib/apt/lists/*

# An index with CPU builds of PyTorch, if yours has them: docker build --build-arg TORCH_INDEX=URL .
ARG TORCH_INDEX=""
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt . \
    && rm -rf /src/*

RUN useradd --create-home lemur && mkdir /data && chown lemur:lemur /data
USER lemur
WORKDIR /data
ENV LEMUR_CURATOR_CACHE=/home/lemur/.cache/lemur-curator

HEALTHCHECK --interval=5m --timeout=2m --start-period=10s --retries=2 CMD ["lemur", "doctor"]
ENTRYPOINT ["lemur"]
CMD ["--help"]
