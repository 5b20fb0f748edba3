#!/bin/sh
# A federation on this machine for rehearsal: TLS, SuperNode authentication, one SuperNode a site.
#   sh federation.sh start 4   certificates and keys in federation/, a SuperLink, 4 registered SuperNodes
#   sh federation.sh stop
# On real machines: the same commands, each where it belongs; private keys never leave their site.
set -eu
cd "$(dirname "$0")"
port=${PORT:-8000}
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="${FLWR_HOME:-$PWD/federation/flwr}"

keep() { "$@" & echo $! >> federation/pids; }

certificates() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 -subj "/CN=rehearsal CA" \
        -keyout federation/ca.key -out federation/ca.pem
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=localhost" \
        -keyout federation/server.key -out federation/server.csr
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' > federation/names
    openssl x509 -req -days 365 -in federation/server.csr -CA federation/ca.pem -CAkey federation/ca.key \
        -CAcreateserial -extfile federation/names -out federation/server.pem
}

start() {
    [ ! -e federation/ca.key ] || { echo "federation/ is there; stop it and remove it first"; exit 1; }
    mkdir -p federation "$FLWR_HOME"
    certificates 2> /dev/null
    printf '[superlink.federation]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' \
        "$port" "$PWD/federation/ca.pem" >> "$FLWR_HOME/config.toml"
    keep flower-superlink --port "$port" --enable-supernode-auth --ssl-ca-certfile federation/ca.pem \
        --ssl-certfile federation/server.pem --ssl-keyfile federation/server.key > federation/superlink.log 2>&1
    until grep -q "Uvicorn running" federation/superlink.log; do
        kill -0 "$(head -n 1 federation/pids)" || { cat federation/superlink.log; exit 1; }
        sleep 0.5
    done
    site=0
    while [ "$site" -lt "$1" ]; do
        ssh-keygen -q -t ecdsa -b 384 -N '' -f "federation/site-$site"
        flwr supernode register "federation/site-$site.pub" federation --name "site-$site"
        keep flower-supernode --superlink "127.0.0.1:$port" --root-certificates federation/ca.pem \
            --auth-supernode-private-key "federation/site-$site" --port $((port + 1 + site)) \
            --node-config "partition-id=$site num-partitions=$1" > "federation/site-$site.log" 2>&1
        site=$((site + 1))
    done
}

stop() { while read -r pid; do kill "$pid" 2> /dev/null || true; done < federation/pids; rm -f federation/pids; }

"$@"
