#!/bin/sh
# One virtual environment per peer, under the folder given: sh benchmarks/peers.sh ~/peers
# torch first, so that all that can run on the same version do (fluke and FedLab bring a newer one with torchvision).
set -u
folder=${1:?which folder should hold the environments?}
mkdir -p "$folder"

peer() {
    name=$1
    shift
    python3 -m venv "$folder/$name" &&
        "$folder/$name/bin/pip" install --quiet torch==2.13.0 numpy &&
        "$folder/$name/bin/pip" install --quiet "$@" &&
        echo "$name: installed" || echo "$name: does not install; the benchmark leaves it out"
}

peer fedjax fedjax jax
python3 -m venv "$folder/jax" && "$folder/jax/bin/pip" install --quiet jax && echo "jax: installed" # for lean_jax
peer pfl pfl
peer fluke fluke-fl
peer fedlab fedlab
peer flower 'flwr[simulation]>=1.41,<1.42'
