FROM python:3.11-slim

RUN useradd --create-home dpsql && install --directory --owner=dpsql /data
COPY pyproject.toml README.md LICENSE /src/
COPY dpsql /src/dpsql
RUN pip install --no-cache-dir /src && rm -rf /src

USER dpsql
WORKDIR /data
VOLUME /data
EXPOSE 6543
ENTRYPOINT ["dpsql"]
