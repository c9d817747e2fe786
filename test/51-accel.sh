#!/usr/bin/env bash
# Guests on a machine where /dev/kvm exists and does not work. A fake QEMU fails with KVM in four ways: it hangs, it
# stops with an internal error after 1 s or after 10 s, it dies. Each time --accel auto uses TCG and the run
# succeeds. Then the probe passes and a guest fails: before the job all guests are started again by TCG, once, with
# a line that names the error; during the job the run fails with that line. $VNIC_TEST_KVM replaces the opening of
# /dev/kvm. With PAIRS=5 the script measures that many pairs of a first run and one with --accel tcg, whose medians
# may differ by 3 s; without it times are not judged.
#
# Invariant: vnic: Where KVM does not work, guests run by TCG, and the first run says so and does not wait for it.
. "$(dirname "$0")/lib.sh"
private_cache "$work/cache"
export VNIC_CACHE=$work/cache
unset VNIC_ACCEL VNIC_SLOW
export VNIC_TEST_KVM=$work/kvm VNIC_QEMU=$work/qemu
: > "$VNIC_TEST_KVM"
cd "$work"

# stand_in PROBE GUEST: makes the fake QEMU, which with KVM does PROBE for the probe's guest and GUEST for others.
stand_in() {
  cat > qemu.new <<END
#!/bin/sh
by_tcg() {
  for a; do
    shift
    case \$a in kvm) a=tcg,thread=multi ;; host) a=max ;; esac
    set -- "\$@" "\$a"
  done
  exec "$vnic" qemu -- "\$@"
}
case " \$* " in
  *" kvm "*" guest=KVM probe,"* | *" guest=KVM probe,"*" kvm "*) $1 ;;
  *" kvm "*) $2 ;;
esac
exec "$vnic" qemu -- "\$@"
END
  chmod +x qemu.new && mv qemu.new qemu
}
internal='echo "KVM internal error. Suberror: 1" >&2; exec sleep 1000'
run() { timeout --kill-after=10 200 "$vnic" run --size 1M --mode devmem "$@" > out 2> err < /dev/null; }
matched() { grep -q match out && ! grep -q MISMATCH out && grep -q "$1" out || { cat out err >&2; fail "$2"; }; }
millis() { date +%s%3N; }

declare -A fails=([hangs]='exec sleep 1000' [error-1s]="sleep 1; $internal" [error-10s]="sleep 10; $internal"
  [dies]='exit 1')
stand_in exit exit
: > late
for ((i = 0; i < ${PAIRS:-1}; i++)); do
  a=$(millis); run --accel tcg || { cat err >&2; fail "--accel tcg"; }; tcg=$(($(millis) - a))
  for how in "${!fails[@]}"; do
    stand_in "${fails[$how]}" "${fails[$how]}"
    rm -f "$VNIC_CACHE/kvm.json"
    a=$(millis); run || { cat out err >&2; fail "$how"; }; auto=$(($(millis) - a))
    matched '(tcg)' "$how"
    "$vnic" doctor > doctor && grep -q 'did not work' doctor || { cat doctor >&2; fail "doctor: $how"; }
    echo "$how $((auto - tcg))" >> late
    echo "ok   $how: first run $auto ms, by --accel tcg $tcg ms"
  done
done
for how in "${!fails[@]}"; do
  median=$(awk -v h="$how" '$1 == h {print $2}' late | sort -n | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}')
  echo "ok   $how: median of ${PAIRS:-1}: $median ms later than by --accel tcg"
  [ -z "${PAIRS-}" ] || [ "$median" -le 3000 ] || fail "$how: over 3 s"
done

# The probe passes.
fails[error-1s]='sleep 1; echo "KVM internal error. Suberror: 1" >&2; exit 1'
for how in error-1s dies; do
  stand_in 'by_tcg "$@"' "${fails[$how]}"
  rm -f "$VNIC_CACHE/kvm.json"
  run --slow 4 || { cat out err >&2; fail "again: $how"; }
  matched '(tcg)' "again: $how"
  [ "$(grep -c 'started again, by TCG' err)" = 1 ] || { cat err >&2; fail "again: $how: not said once"; }
  "$vnic" doctor > doctor && grep -q 'did not work' doctor || { cat doctor >&2; fail "again: $how: not remembered"; }
  [ $how = dies ] || grep -q 'KVM internal error. Suberror: 1.*started again' err || { cat err >&2; fail "no name"; }
  echo "ok   again: $how: $(grep 'started again' err)"
done
# The flag, which the second process also has; a lab file that can be read only once, and one that requires KVM.
rm -f "$VNIC_CACHE/kvm.json"
run --slow 4 --accel auto || { cat out err >&2; fail "again: --accel auto"; }
matched '(tcg)' 'again: --accel auto'
[ "$(grep -c 'started again, by TCG' err)" = 1 ] || { cat err >&2; fail 'again: --accel auto: not said once'; }
guest='guests: {a: {nics: [{name: n}], gpus: [{name: g}]}, b: {nics: [{name: n}], gpus: [{name: g}]}}'
for lab in - kvm.yaml; do
  rm -f "$VNIC_CACHE/kvm.json"
  echo "$guest" > any.yaml; echo "$guest
accel: kvm" > kvm.yaml
  timeout --kill-after=10 200 "$vnic" run --slow 4 --size 1M --mode devmem --lab $lab > out 2> err < any.yaml &&
    fail "--lab $lab: with a QEMU that dies"
  grep -q 'accel tcg' err && ! grep -q 'started again' err || { cat err >&2; fail "--lab $lab"; }
done
# If QEMU ends for a reason other than KVM, the run ends.
stand_in 'by_tcg "$@"' 'echo "qemu-system-x86_64: -nosuch: invalid option" >&2; exit 1'
rm -f "$VNIC_CACHE/kvm.json"
run --slow 4 && fail "a QEMU whose arguments are wrong"
grep -q nosuch err && ! grep -q 'started again\|accel tcg' err || { cat err >&2; fail "not KVM's"; }
stand_in 'by_tcg "$@"' 'exit 1'
# With --accel kvm guests are not started again; without /dev/kvm the exit status is that of a machine that lacks
# something.
run --accel kvm && fail "--accel kvm with a QEMU that dies"
grep -q 'accel tcg' err && ! grep -q 'started again' err || { cat err >&2; fail "--accel kvm"; }
status=0; VNIC_TEST_KVM=$work/none run --accel kvm || status=$?
[ $status = 3 ] && grep -q 'no /dev/kvm' err || { cat err >&2; fail "--accel kvm: status $status without KVM"; }

# A guest that KVM stops during its job ends the run.
stand_in 'by_tcg "$@"' "(until [ -e $work/now ]; do sleep 0.2; done; echo 'KVM internal error. Suberror: 3' >&2; \
kill -9 \$\$) & by_tcg \"\$@\""
rm -f "$VNIC_CACHE/kvm.json"
"$vnic" run --slow 4 --size 64G --mode devmem > out 2> err < /dev/null & pid=$!
until grep -q 'stage: transfer' err; do kill -0 $pid || { cat err >&2; fail "no transfer"; }; sleep 0.2; done
: > now
wait $pid && fail "a run without guests"
grep -q 'Suberror: 3' err && grep -q 'accel tcg' err && ! grep -q 'started again' err || \
  { cat err >&2; fail "in the job"; }
echo "ok   in the job: $(grep '^vnic:' err | head -1)"
