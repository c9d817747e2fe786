#!/usr/bin/env bash
# "vnic selftest": the kernel's own driver selftests in a guest.
# - On the gVNIC all cases of devmem.py and queues.py pass, and with the patches those of csum.py and ntuple.py;
#   exit status, JSON, and JUnit's XML agree; by the NIC's counters payload of devmem.py was in device memory. A
#   program that needs longer than the usual limit of the tests' library passes.
# - Negative controls: a test that was changed so that it fails is a new failure, with status 1, and has its line in
#   table, JSON and JUnit's XML; if a guest's kernel panics, the report has the kernel's complaint, and the next
#   program gets another guest.
# - For a case or program that does not exist, wrong flags and wrong trees the command ends at once, and names them.
# This script takes four minutes with a warm cache, and downloads 400 MB with a cold one.
. "$(dirname "$0")/lib.sh"

echo "== programs that pass on the gVNIC"
within 600 "$vnic" selftest --json --junit "$work/junit.xml" --log "$work/log" --patch-tests hw/devmem.py \
  queues.py hw/ntuple.py > "$work/gve.json" || [ $? = 1 ]
passes() { # INDEX PROGRAM COLUMN CASES: the conditions that a program's first cases pass
  printf '%s\n' "programs.$1.name == \"$2\"" "programs.$1.column == \"$3\""
  for i in $(seq 0 $(($4 - 1))); do echo "programs.$1.cases.$i.result == \"pass\""; done
}
mapfile -t conditions < <(passes 0 hw/devmem.py unmodified 4; passes 2 queues.py unmodified 4
  passes 4 hw/ntuple.py patched 24)
"$work/jsoncheck" "${conditions[@]}" 'programs.2.cases.-len- == 4' 'programs.4.cases.-len- == 24' \
  'programs.0.devmem.proved == true' 'programs.0.devmem.device_bytes >= 10000' \
  'judgement.judged == true' 'judgement.matches == true' 'status == 0' < "$work/gve.json" > "$work/holds" ||
  fail "what the run says of itself: $(grep FAIL "$work/holds"; grep -h -B 20 '^not ok' "$work"/log/*.log)"
grep -Eq '"accel": "(kvm|tcg)"' "$work/gve.json" || fail "the run does not say whether KVM was used"
[ "$(grep -c '<testcase' "$work/junit.xml")" = "$(grep -c '"verdict"' "$work/gve.json")" ] &&
  ! grep -q '<failure\|<error' "$work/junit.xml" || fail "JUnit: $(head -c 2000 "$work/junit.xml")"
[ -e "$work/log/console.log" ] && grep -q "^ok 4 devmem.check_rx_hds" "$work/log/hw_devmem.py-unmodified.log" ||
  fail "--log: $(ls "$work/log")"
# Without the patch one of 164 runs fails, whatever the NIC does (internal/machine/assets/selftests/patches/README).
within 300 "$vnic" selftest --json --patch-tests hw/csum.py > "$work/csum.json" || [ $? = 1 ]
mapfile -t conditions < <(passes 1 hw/csum.py patched 12)
"$work/jsoncheck" "${conditions[@]}" 'programs.1.cases.-len- == 12' < "$work/csum.json" > "$work/holds" ||
  fail "csum.py: $(grep FAIL "$work/holds"; grep -A 30 '"fail"' "$work/csum.json")"

echo "== a test that fails, and a kernel that panics"
mkdir -p "$work/tests/drivers/net"
cat > "$work/tests/drivers/net/queues.py" <<'PY'
#!/usr/bin/env python3
import sitecustomize
from lib.py import bkg, cmd, ksft_run, ksft_exit, ksft_eq, ksft_ge, rand_port, wait_port_listen
def patient() -> None: # the library's limit for a port is 5 s; vnic makes it four times as long, and --slow longer
    ksft_ge(sitecustomize.TIMES, 6)
    port = rand_port()
    slow = f"import socket, time; time.sleep(7); socket.create_server(('', {port})).accept()"
    with bkg(f'python3 -c "{slow}"', shell=True, exit_wait=True):
        wait_port_listen(port)
        cmd(f"bash -c 'exec 3<> /dev/tcp/127.0.0.1/{port}; sleep 7'", shell=True)
def get_queues() -> None:
    ksft_eq(1, 2, comment="changed by a user")
def dies() -> None:
    with open("/proc/sysrq-trigger", "w") as f:
        f.write("c")
ksft_run([patient, get_queues, dies])
ksft_exit()
PY
chmod +x "$work/tests/drivers/net/queues.py"
status=0
within 200 "$vnic" selftest --slow 1.5 --tests "$work/tests" --junit "$work/bad.xml" queues.py napi_id.py \
  > "$work/bad.txt" 2> "$work/bad.err" || status=$?
[ $status = 1 ] || fail "status $status: $(tail -n 5 "$work/bad.err")"
for want in "changed by a user" "Kernel panic - not syncing: sysrq triggered crash" "queues.py:#3"; do
  grep -q -- "$want" "$work/bad.txt" || fail "no $want in: $(cat "$work/bad.txt")"
done
grep -Eq '^queues.py +unmodified +1 ' "$work/bad.txt" || fail "a slow program is not waited for: $(cat "$work/bad.txt")"
grep -Eq '^napi_id.py +unmodified +1 +0' "$work/bad.txt" || fail "the next program: $(cat "$work/bad.txt")"
grep -q "<failure" "$work/bad.xml" || fail "JUnit without a failure"

echo "== mistakes"
mistake() { # STATUS WORDS ARGUMENTS...
  local want=$1 words=$2 got=0; shift 2
  within 60 "$vnic" selftest "$@" > "$work/out" 2> "$work/err" || got=$?
  [ $got = "$want" ] || fail "$*: status $got, not $want: $(head -n 3 "$work/err")"
  head -n 1 "$work/err" | grep -qF -- "$words" || fail "$*: $(head -n 1 "$work/err")"
}
mistake 2 "nosuch.py: this kernel's tests have no such program" nosuch.py
mistake 2 "csum:: which case?" csum:
mistake 2 "csum.py:nosuch: no such case" csum.py:nosuch
mistake 2 "--nic e1000: virtio or gve" --nic e1000
mistake 2 "--device ne2k: e1000e, virtio-net-pci, vmxnet3" --device ne2k
mistake 2 "--mtu 12: 576 to 9198" --mtu 12
mistake 2 "--max-mtu 1400: 1500 (--mtu) to 9198" --max-mtu 1400
mistake 2 "--sabotage" --sabotage none
mistake 2 "--tests and --source" --tests / --source /
mistake 3 "--source /dev" --source /dev csum
mistake 3 "--tests /dev" --tests /dev csum
mistake 3 "not in the cache" --cache "$work/none" --offline csum
mistake 1 "--log" --log /proc/none csum
mistake 1 "/proc/none" --junit /proc/none/x csum
echo PASS
