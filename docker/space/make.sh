#!/bin/sh
# Collects the files of a Space:  sh docker/space/make.sh DIRECTORY
set -eu
target=${1:?the directory to make}
cd "$(dirname "$0")/../.."
mkdir "$target"
git ls-files -z -- LICENSE commands constraints.txt kitestring labeler launch.py pipeline pyproject.toml storage |
    xargs -0 cp --parents -t "$target"
cp docker/space/README.md docker/space/start.sh "$target"/
{ cat .dockerignore && echo '!start.sh'; } > "$target/.dockerignore"
{ cat Dockerfile && cat docker/space/Dockerfile.end; } > "$target/Dockerfile"
