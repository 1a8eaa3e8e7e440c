#!/bin/sh
# Starts the studio on a Hugging Face Space, whose disk is empty after every restart.
# BACKUPS is a mounted bucket: the newest backup in it is restored, and later ones are added.
set -eu
: "${BACKUPS:=/backups}" "${BACKUP_SECONDS:=600}"
: "${KITESTRING_PUBLIC_URL:=https://${SPACE_HOST:?}}"
# Only the proxies of the Hub reach the container, from private addresses.
: "${FORWARDED_ALLOW_IPS:=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16}"
export KITESTRING_PUBLIC_URL FORWARDED_ALLOW_IPS

if [ ! -d "$BACKUPS" ]; then
    echo "$BACKUPS is not mounted: labels are lost when this Space restarts" >&2
elif [ ! -e workspace ]; then
    newest=
    for manifest in "$BACKUPS"/*/backup.json; do # the names are times, so the last is the newest
        if [ -e "$manifest" ]; then newest=${manifest%/backup.json}; fi
    done
    if [ -n "$newest" ]; then kitestring restore "$newest"; fi
fi

back_up() {
    name=$(date -u +%Y%m%dT%H%M%SZ)
    scratch=$(mktemp -d)
    kitestring backup "$scratch/$name" >/dev/null || true # of a damaged journal it is made all the same
    if [ -e "$scratch/$name/backup.json" ]; then
        # The manifest comes last: without it, nothing is restored from an unfinished copy.
        mkdir "$BACKUPS/$name" && cp "$scratch/$name"/workspace.duckdb "$scratch/$name"/journal.jsonl \
            "$scratch/$name"/config.toml "$BACKUPS/$name"/ && cp "$scratch/$name/backup.json" "$BACKUPS/$name"/
    fi
    status=$?
    rm -rf "$scratch"
    return $status
}

if [ -d "$BACKUPS" ]; then
    (
        saved=0
        while sleep "$BACKUP_SECONDS"; do
            size=$(wc -c 2>/dev/null < workspace/journal.jsonl) || continue
            if [ "$size" != "$saved" ] && back_up; then saved=$size; fi
        done
    ) &
fi
exec kitestring serve "$@"
