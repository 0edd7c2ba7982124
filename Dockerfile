FROM python:3.11.13-slim-bookworm AS build
COPY pyproject.toml README.md LICENSE docker/constraints.txt /src/
COPY dpsql /src/dpsql
RUN python -m venv --without-pip /opt/dpsql \
    && pip --python /opt/dpsql/bin/python install --no-cache-dir --constraint /src/constraints.txt /src

FROM python:3.11.13-slim-bookworm
RUN useradd --uid 10001 dpsql && install --directory --owner=dpsql /data
COPY --from=build /opt/dpsql /opt/dpsql
ENV PATH=/opt/dpsql/bin:$PATH
USER dpsql
WORKDIR /data
VOLUME /data
EXPOSE 6543
ENTRYPOINT ["dpsql"]
