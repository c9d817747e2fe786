# Sourced by the scripts of this folder. vnic is the built program; check holds JSON on stdin against conditions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vnic=${VNIC:-$PWD/bin/vnic} # the program under test
[ -x "$vnic" ] || { echo "no $vnic: run make build first" >&2; exit 1; }
mkdir -p bin
if [ ! -x bin/jsoncheck ] || [ acceptance/internal/jsoncheck/main.go -nt bin/jsoncheck ]; then
  tools/with-tools go build -o bin/jsoncheck ./acceptance/internal/jsoncheck
fi
check() { "$OLDPWD_ROOT/bin/jsoncheck" "$@"; }
OLDPWD_ROOT=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL $*" >&2; exit 1; }

# within SECONDS COMMAND...: runs it, and fails if it takes longer.
within() {
  local limit=$1 start=$SECONDS; shift
  timeout --kill-after=10 "$limit" "$@" || { local s=$?; [ $s = 124 ] && fail "over $limit s: $*"; return $s; }
  echo "ok   $((SECONDS - start)) s of $limit: $*" >&2
}

# devmem_proof RUN: the conditions that prove a run of mode devmem without loss.
devmem_proof() {
  printf '%s\n' "runs.$1.mode == \"devmem\"" "runs.$1.sha256_match == true" "runs.$1.tx.device == runs.$1.bytes" \
    "runs.$1.rx.device == runs.$1.bytes" "runs.$1.tx.host == 0" "runs.$1.rx.host == 0" "runs.$1.linear_bytes == 0"
}
# devmem_proof_loss RUN: the same, where segments are sent again.
devmem_proof_loss() {
  printf '%s\n' "runs.$1.mode == \"devmem\"" "runs.$1.sha256_match == true" "runs.$1.tx.device >= runs.$1.bytes" \
    "runs.$1.rx.device >= runs.$1.bytes" "runs.$1.tx.host == 0" "runs.$1.rx.host == 0" "runs.$1.linear_bytes == 0"
}
copy_proof() {
  printf '%s\n' "runs.$1.mode == \"copy\"" "runs.$1.sha256_match == true" "runs.$1.tx.host >= runs.$1.bytes" \
    "runs.$1.rx.host >= runs.$1.bytes" "runs.$1.tx.device == 0" "runs.$1.rx.device == 0"
}
# holds FILE CONDITION...: conditions one a line or one an argument.
holds() {
  local file=$1; shift
  local conds=()
  mapfile -t conds < <(printf '%s\n' "$@")
  check "${conds[@]}" < "$file"
}
