#!/usr/bin/env bash
# "vnic selftest" with a kernel that a user has built from source works as with Debian's.
# - The script configures the kernel's source from the cache with the least that the tests need, builds it, and
#   installs its modules. With `--kernel --modules --source PROGRAM` csum.py and devmem.py pass; the time to the
#   first test's start is printed.
# - Negative controls: with a driver that was changed so that it does not verify checksums of IPv4 csum.py fails,
#   and no other program; a changed test fails. So the files that a developer edits are the ones that run.
# - With wrong source, a kernel that lacks a module, no modules, half a kernel, or a full disk the command ends at
#   once, with one message that names the cause.
# This script takes half an hour on two cores, and downloads flex, bison and 400 MB if the cache is empty.
. "$(dirname "$0")/lib.sh"

echo "== the source"
"$vnic" selftest queues.py > /dev/null # the cache has the kernel's source and its compilers now
. tools/debs.sh
fetch kernel-build "$(suite_of_machine) trixie sid" flex bison m4 bc libelf-dev || fail "no flex and bison to be had"
kb=$cache/kernel-build
cache=${cache%/tools}
export PATH=$kb/usr/bin:$PATH BISON_PKGDATADIR=$kb/usr/share/bison M4=$kb/usr/bin/m4
libs=$(echo "$kb"/usr/lib/*-linux-gnu)
make() { # objtool wants libelf's headers
  C_INCLUDE_PATH=$kb/usr/include:$(echo "$kb"/usr/include/*-linux-gnu) LIBRARY_PATH=$libs LD_LIBRARY_PATH=$libs \
    command make "$@"
}
tree=${TREE:-$work/linux}
tarball=$(ls "$cache"/selftests-tools/*/usr/src/linux-source-*.tar.xz | head -n 1)
[ -e "$tree/Makefile" ] || { mkdir -p "$tree"; tar xf "$tarball" -C "$tree" --strip-components=1; }

echo "== the kernel"
cd "$tree"
cat > vnic.config <<'END'
CONFIG_64BIT=y
CONFIG_SMP=y
CONFIG_NUMA=y
CONFIG_ACPI=y
CONFIG_ACPI_NUMA=y
CONFIG_X86_64_ACPI_NUMA=y
CONFIG_NODES_SHIFT=6
CONFIG_HYPERVISOR_GUEST=y
CONFIG_PARAVIRT=y
CONFIG_KVM_GUEST=y
CONFIG_PCI=y
CONFIG_PCI_MSI=y
CONFIG_PCIEPORTBUS=y
CONFIG_HOTPLUG_PCI=y
CONFIG_HOTPLUG_PCI_PCIE=y
CONFIG_MODULES=y
CONFIG_MODULE_UNLOAD=y
CONFIG_PRINTK=y
CONFIG_TTY=y
CONFIG_SERIAL_8250=y
CONFIG_SERIAL_8250_CONSOLE=y
CONFIG_VIRTIO_MENU=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_CONSOLE=y
CONFIG_HVC_DRIVER=y
CONFIG_BLOCK=y
CONFIG_BLK_DEV=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_RD_GZIP=y
CONFIG_RD_ZSTD=y
CONFIG_VIRTIO_BLK=m
CONFIG_SQUASHFS=m
CONFIG_SQUASHFS_ZSTD=y
CONFIG_OVERLAY_FS=m
CONFIG_MISC_FILESYSTEMS=y
CONFIG_TMPFS=y
CONFIG_TMPFS_XATTR=y
CONFIG_DEVTMPFS=y
CONFIG_PROC_FS=y
CONFIG_PROC_SYSCTL=y
CONFIG_SYSFS=y
CONFIG_SYSCTL=y
CONFIG_DEBUG_FS=y
CONFIG_BINFMT_ELF=y
CONFIG_BINFMT_SCRIPT=y
CONFIG_MULTIUSER=y
CONFIG_FUTEX=y
CONFIG_EPOLL=y
CONFIG_SIGNALFD=y
CONFIG_TIMERFD=y
CONFIG_EVENTFD=y
CONFIG_SHMEM=y
CONFIG_AIO=y
CONFIG_IO_URING=y
CONFIG_POSIX_TIMERS=y
CONFIG_HIGH_RES_TIMERS=y
CONFIG_NO_HZ_IDLE=y
CONFIG_FILE_LOCKING=y
CONFIG_ADVISE_SYSCALLS=y
CONFIG_MEMBARRIER=y
CONFIG_RSEQ=y
CONFIG_NAMESPACES=y
CONFIG_NET_NS=y
CONFIG_PID_NS=y
CONFIG_USER_NS=y
CONFIG_UTS_NS=y
CONFIG_SYSVIPC=y
CONFIG_IPC_NS=y
CONFIG_CGROUPS=y
CONFIG_BPF_SYSCALL=y
CONFIG_NET=y
CONFIG_UNIX=y
CONFIG_PACKET=y
CONFIG_XDP_SOCKETS=y
CONFIG_INET=y
CONFIG_IPV6=y
CONFIG_NETDEVICES=y
CONFIG_NET_CORE=y
CONFIG_ETHERNET=y
CONFIG_ETHTOOL_NETLINK=y
CONFIG_NET_VENDOR_GOOGLE=y
CONFIG_GVE=m
CONFIG_PTP_1588_CLOCK=y
CONFIG_PAGE_POOL=y
CONFIG_PAGE_POOL_STATS=y
CONFIG_NET_DEVMEM=y
CONFIG_DMA_SHARED_BUFFER=y
CONFIG_DMABUF_HEAPS=y
CONFIG_UDMABUF=y
CONFIG_MEMFD_CREATE=y
CONFIG_HUGETLBFS=y
CONFIG_NET_SCHED=y
CONFIG_NET_SCH_FQ=y
CONFIG_VIRTIO_NET=m
CONFIG_GENERIC_ALLOCATOR=y
CONFIG_VIRT_DRIVERS=y
CONFIG_MAGIC_SYSRQ=y
CONFIG_UNWINDER_FRAME_POINTER=y
# CONFIG_CPU_MITIGATIONS is not set
CONFIG_CRYPTO=y
CONFIG_LOCALVERSION="-mine"
END
make -s tinyconfig > /dev/null
scripts/kconfig/merge_config.sh -m .config vnic.config > /dev/null 2>&1
make -s olddefconfig
while IFS= read -r want; do
  grep -qxF "$want" .config || fail "the configuration has no $want"
done < vnic.config
build() { # TARGET...: builds, and installs the modules
  make -s -j"$(nproc)" "$@" > "$work/make.log" 2>&1 &&
    make -s modules_install INSTALL_MOD_PATH="$work/mods" >> "$work/make.log" 2>&1 ||
    fail "make: $(tail -n 20 "$work/make.log")"
}
start=$SECONDS
build bzImage modules
echo "ok   built in $((SECONDS - start)) s" >&2
cd "$root"
kernel=$tree/arch/x86/boot/bzImage modules=$(echo "$work"/mods/lib/modules/*)
release=${modules##*/}
own() { "$vnic" selftest --kernel "$kernel" --modules "$modules" "$@"; }

echo "== the tests of its tree, on it"
own --source "$tree" hw/csum.py > /dev/null 2> "$work/err" || true # builds the tests
own --source "$tree" --json hw/csum.py hw/devmem.py queues.py > "$work/own.json" 2> "$work/err" ||
  fail "$(cat "$work/err"; head -c 2000 "$work/own.json")"
grep "the first test starts after" "$work/err"
python3 - "$work/own.json" "$work/err" "$release" <<'PY' || fail "the results"
import json, re, sys
r, err = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
got = {p["name"]: [c["result"] for c in p["cases"]] for p in r["programs"]}
want = {"hw/csum.py": ["pass"] * 12, "hw/devmem.py": ["pass"] * 4, "queues.py": ["pass"] * 4}
seconds = float(re.search(r"the first test starts after ([\d.]+) s", err)[1])
if got != want or r["kernel"] != sys.argv[3] or seconds > 20:
    sys.exit("%s, kernel %s, first test after %s s" % (got, r["kernel"], seconds))
PY

echo "== a driver with a fault"
rx=$tree/drivers/net/ethernet/google/gve/gve_rx_dqo.c
cp "$rx" "$work/gve_rx_dqo.c"
sed -i 's/desc->csum_l4_err/0/g' "$rx"
cmp -s "$rx" "$work/gve_rx_dqo.c" && fail "the driver does not look as it did"
(cd "$tree" && build modules)
cp "$work/gve_rx_dqo.c" "$rx"
status=0
own --source "$tree" hw/csum.py:ipv4_rx_tcp_invalid queues.py > "$work/out" 2> "$work/err" || status=$?
[ $status = 1 ] && grep -q "^hw/csum.py:ipv4_rx_tcp_invalid: new failure" "$work/out" &&
  grep -q "^queues.py .* 4 *0 " "$work/out" || fail "status $status: $(cat "$work/out")"
grep "the first test starts after" "$work/err"

echo "== mistakes"
mistake() { # WORDS ARGUMENTS...: status 1 to 3, within a minute, and the first line of standard error has the words
  local words=$1 got=0; shift
  within 100 "$vnic" selftest "$@" > "$work/out" 2> "$work/err" || got=$?
  [ $got != 0 ] || fail "$*: status 0"
  grep '^vnic: ' "$work/err" | head -n 1 | grep -qF -- "$words" || fail "$*: $(head -n 3 "$work/err")"
}
mkdir "$work/empty"
mistake "tools/testing/selftests" --kernel "$kernel" --modules "$modules" --source "$work/empty" queues.py
cp -r "$modules" "$work/lacks"
find "$work/lacks" -name 'squashfs.ko*' -delete
mistake squashfs --kernel "$kernel" --modules "$work/lacks" queues.py
cp -r "$modules" "$work/lacks-gve"
find "$work/lacks-gve" -name 'gve.ko*' -delete
mistake gve --kernel "$kernel" --modules "$work/lacks-gve" queues.py
mistake "$work/none" --kernel "$kernel" --modules "$work/none" queues.py
# The disk is full before everything is unpacked.
mkdir "$work/full"
got=0
within 300 unshare --user --map-root-user --mount bash -c \
  'mount -t tmpfs -o size=600M tmpfs "$1" && exec "$2" selftest --cache "$1" queues.py' bash "$work/full" "$vnic" \
  > "$work/out" 2> "$work/err" || got=$?
[ $got != 0 ] && grep '^vnic: ' "$work/err" | head -n 1 | grep -q "not enough space" ||
  fail "full disk: status $got: $(cat "$work/err")"
grep '^vnic: ' "$work/err" | head -n 1
head -c 100000 "$kernel" > "$work/cut"
mistake "$work/cut" --kernel "$work/cut" --modules "$modules" queues.py
echo PASS
