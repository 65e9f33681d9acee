#!/usr/bin/env bash
# Starts the Triton server that the wheel nvidia-pytriton brings, with the tiny model behind its Python backend.
#
#   triton_server.sh PYTHON REPOSITORY HTTP_PORT GRPC_PORT METRICS_PORT
#
# PYTHON is of the environment with the wheel. TINY_MODEL is the folder of the model. REPOSITORY is written.
set -euo pipefail
unset CDPATH

python=$1 repository=$2 http=$3 grpc=$4 metrics=$5
here=$(dirname -- "${BASH_SOURCE[0]}")
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
server=$packages/pytriton/tritonserver
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

rm -rf -- "$repository"
mkdir -p -- "$repository/models/tiny/1"
cp -- "$here/triton_config.pbtxt" "$repository/models/tiny/config.pbtxt"
cp -- "$here/triton_model.py" "$repository/models/tiny/1/model.py"
cp -- "$here/tiny_text.py" "$repository/models/tiny/1/"
# The wheel keeps the backend apart from its stub, of which it has one for each Python.
cp -r -- "$server/backends" "$repository/"
cp -- "$server/python_backend_stubs/$version/triton_python_backend_stub" "$repository/backends/python/"

# The stub must find the library of the same Python, not one of the system.
libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
export LD_LIBRARY_PATH=$packages/nvidia_pytriton.libs:$libraries
export PATH=${python%/*}:$PATH PYTHONPATH=$packages
exec "$server/bin/tritonserver" --model-repository "$repository/models" --backend-directory "$repository/backends" \
  --http-address 127.0.0.1 --http-port "$http" --grpc-address 127.0.0.1 --grpc-port "$grpc" --metrics-port "$metrics" \
  --allow-gpu-metrics false
