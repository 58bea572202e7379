#!/bin/busybox sh
# The first process of the guest of `cargo xtask soak numa`: two sockets with two cores with two
# hyper-threads, a node each. What the kernel says is compared with what nearstate planned and did.
# Each check prints "guest: ok NAME" or "guest: FAIL NAME"; the last line is "guest: end".
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ifconfig lo up

same() { # NAME FOUND EXPECTED
    if [ "$2" = "$3" ]; then echo "guest: ok $1"; else echo "guest: FAIL $1: $2, expected $3"; fi
}
has() { # NAME TEXT PART
    case "$2" in *"$3"*) echo "guest: ok $1" ;; *) echo "guest: FAIL $1: $2, expected $3" ;; esac
}
allowed() { sed -n "s/^$2_allowed_list:[[:space:]]*//p" "/proc/$1/status"; }
shmem() { sed -n 's/.*Shmem: *\([0-9]*\) kB/\1/p' "/sys/devices/system/node/node$1/meminfo"; }

has "topology" "$(nearstate numa show)" "8 processors, 4 cores, 2 sockets, 2 nodes"
has "distances" "$(nearstate numa show)" "distances 10 21"

nearstate numa plan --window 0 --housekeeping '' --slice low:2:low --slice high:2:high \
    --save /tmp/plan.json > /tmp/plan.txt
cat /tmp/plan.txt
has "low traffic gets hyper-threads" "$(grep low /tmp/plan.txt)" \
    "processors 4,5  nodes 1  memory node 1"
has "high traffic gets two cores" "$(grep high /tmp/plan.txt)" \
    "processors 0,2  nodes 0  memory node 0"

sleep 1000 &
pid=$!
nearstate numa apply /tmp/plan.json --slice low --pid $pid
same "affinity of a process" "$(allowed $pid Cpus)" "4-5"
nearstate numa apply /tmp/plan.json --slice high --pid $pid --each-thread
same "affinity of each thread" "$(allowed $pid Cpus)" "0"
echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
nearstate numa apply /tmp/plan.json --slice low --cgroup /sys/fs/cgroup/low --pid $pid
same "processors of a control group" "$(cat /sys/fs/cgroup/low/cpuset.cpus.effective)" "4-5"
same "memory node of a control group" "$(allowed $pid Mems)" "1"
kill $pid

before=$(shmem 1)
taskset 1 nearstate region create /dev/shm/bound --max 64MiB --populate --numa bind:1
same "the kernel has the region on node 1" $(($(shmem 1) - before >= 65536)) 1
pages=$(nearstate region inspect /dev/shm/bound --nodes)
has "the region's pages are on node 1" "$pages" "pages on node 1"
case "$pages" in
*"on node 0"*) echo "guest: FAIL a page of the region is on node 0" ;;
*) echo "guest: ok no page of the region is on node 0" ;;
esac
rm /dev/shm/bound
zero=$(shmem 0)
one=$(shmem 1)
nearstate region create /dev/shm/both --max 64MiB --populate --numa interleave:0,1
same "interleaved pages are halved" $(($(shmem 0) - zero >= 65536 && $(shmem 1) - one >= 65536)) 1
rm /dev/shm/both
one=$(shmem 1)
taskset 1 nearstate region create /dev/shm/near --max 64MiB --populate --numa preferred:1
same "preferred pages are on node 1" $(($(shmem 1) - one >= 131072)) 1
rm /dev/shm/near
nearstate region create /dev/shm/sparse --max 64MiB --numa bind:1 > /tmp/sparse.txt
has "the policy of a region without its pages is read back" "$(cat /tmp/sparse.txt)" \
    "policy bind:1"
rm /dev/shm/sparse
nearstate region create /dev/shm/none --max 64MiB --numa bind:7 2> /tmp/refused
same "a node that does not exist is refused" $? 1

nearstate serve --region /dev/shm/served --max 64MiB --listen 127.0.0.1:7000 \
    --place auto --cores 2 > /tmp/serve.txt 2>&1 &
node=$!
until grep -q NS-1003 /tmp/serve.txt || ! kill -0 $node 2> /dev/null; do sleep 0.2; done
cores=""
for task in /proc/$node/task/*; do
    case "$(cat "$task/comm")" in
    ns-core-*) cores="$cores $(allowed "$node/task/${task##*/}" Cpus)" ;;
    esac
done
set -- $cores
has "each core of a node has its processor" " 0 1 2 3 4 5 6 7 " " ${1:-none} "
same "two cores of a node are two processors of one memory node" "$(($1 / 4)) $(($1 != $2))" \
    "$(($2 / 4)) 1"
attached=$(grep NS-1001 /tmp/serve.txt)
has "a node says where its region's memory is" "$attached" \
    "pages on node $(($1 / 4)), policy preferred:$(($1 / 4))"
case "$attached" in
*"on node $((1 - $1 / 4))"*) echo "guest: FAIL a page of the served region is on the other node" ;;
*) echo "guest: ok no page of the served region is on the other node" ;;
esac
cat /tmp/serve.txt
kill $node

echo 0 > /sys/devices/system/cpu/cpu5/online
has "an offline processor" "$(nearstate numa show)" "offline: 5"
nearstate numa apply /tmp/plan.json --slice low --pid $$ 2> /tmp/refused
has "a plan of another machine is refused" "$(cat /tmp/refused)" "is planned for"
echo "guest: end"
poweroff -f
