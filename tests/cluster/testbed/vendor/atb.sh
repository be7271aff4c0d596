# Stands in for set_env.sh of ATB, which imports torch to find its ABI if no argument has it.
case "$1" in
  --cxx_abi=*) export ATB_HOME_PATH=/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_${1#--cxx_abi=} ;;
  *) python3 -c 'import torch' ;;
esac
