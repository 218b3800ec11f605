# node 0: on fd00::1
#   must be set there: A B?C SCRATCH
#   add --token-file FILE with the same token on every node
nl=$(printf '\n.') && nl=${nl%.} && cd '/scratch/my dir' && /opt/py/bin/python -m meshrun --nnodes 2 --node-rank 0 --master-addr fd00::1 --master-port 3000 --nproc-per-node 8 --mesh conf/mesh.yaml --init off --preload numpy,x --device cuda --timeout 1000000 --quiet -m pkg.train 'it'"'"'s' '$HOME' a"$nl"b
# node 1: on b
#   must be set there: A B?C SCRATCH
#   add --token-file FILE with the same token on every node
nl=$(printf '\n.') && nl=${nl%.} && cd /data && /usr/bin/python3 -m meshrun --nnodes 2 --node-rank 1 --master-addr fd00::1 --master-port 3000 --nproc-per-node 8 --mesh conf/mesh.yaml --init off --preload numpy,x --device cuda --timeout 1000000 --quiet -m pkg.train 'it'"'"'s' '$HOME' a"$nl"b
