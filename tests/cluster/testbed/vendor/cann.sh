# Stands in for set_env.sh of CANN. A volume may have a recording runtime, which stands in for CANN.
export ASCEND_TOOLKIT_HOME=/usr/local/Ascend/cann
if [ -r /site-packages/cann/set_env.sh ]; then
  . /site-packages/cann/set_env.sh
fi
