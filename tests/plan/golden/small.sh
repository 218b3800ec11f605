# node 0: on a
#   must be set there: TOKEN
cd /data && /usr/bin/python3 -m meshrun --nnodes 2 --node-rank 0 --master-addr a --master-port 29400 --nproc-per-node 4 --mesh dp=2,tp=4 --grace 2.5 /data/train.py --lr 1e-3
# node 1: on b
#   must be set there: TOKEN X
cd /data && CUDA_VISIBLE_DEVICES=0,2,3,4 /usr/bin/python3 -m meshrun --nnodes 2 --node-rank 1 --master-addr a --master-port 29400 --nproc-per-node 4 --mesh dp=2,tp=4 --grace 2.5 /data/train.py --lr 1e-3
