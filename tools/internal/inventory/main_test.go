package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/tree"
	"vnic.dev/vnic/tools/internal/treetest"
)

// small has the files of a checkout. Its fuzz target is indented, so that tools/fuzz does not take it for one of this
// package.
var small = map[string]string{
	"go.mod": "module " + tree.Module + "\n\ngo 1.26\n",
	"a/a_test.go": `package a

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }

func TestPlain(t *testing.T) {}

func Testify() {}

func TestTable(t *testing.T) {
	for _, name := range []string{"first case", "second"} {
		t.Run(name, func(t *testing.T) { t.Run("within", func(t *testing.T) {}) })
	}
	t.Run("known name", func(t *testing.T) { t.Run("deep", func(t *testing.T) {}) })
}

func TestSkipped(t *testing.T) { t.Skip() }

 func FuzzX(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(func(*testing.T, []byte) {})
}

func BenchmarkB(b *testing.B) {
	b.Run("part", func(b *testing.B) {})
	b.Run(os.DevNull[1:4], func(b *testing.B) {})
}

func Example() {
	// Output:
}
`,
	"a/testdata/fuzz/FuzzX/0123":    "go test fuzz v1\n[]byte(\"x\")\n",
	"a/testdata/nested/b_test.go":   "package b\n",
	"cmd/x/testdata/script/s.txtar": "# about\nmkdir d\nexits 1 x\nstderr 'a  b'\nstderr 'a b'\n-- f --\nexits 2 x\n",
	"test/lib.sh": `# sourced
fail() { echo "FAIL $*" >&2; exit 1; }
holds() {
  [ -s "$1" ] || fail "$1"
}
`,
	"test/internal/p/report.go": `package main

import "fmt"

func say(s string) { fmt.Println("ok  ", s) }
`,
	"test/internal/p/main.go": `package main

import "fmt"

func main() {
	say("it works")
	fmt.Println(fmt.Errorf("guest: %w", nil), fmt.Errorf("%w", nil))
}
`,
	"test/1.sh": `#!/bin/bash
. lib.sh
# fail is no check here
mine() { holds "$1"; }
echo "== it's a heading"
x=3 # it's no quote that is open
mine "$x" \
  twice
run it || fail "over
two lines"
table='row one
row two'
helper=$(awk '{
  print
}')
cat > other <<'SH'
grep 'unbalanced
SH
grep -q x y
`,
}

var smallStatic = []string{
	`check test/1.sh echo "== it's a heading"`,
	`check test/1.sh grep -q x y`,
	`check test/1.sh grep 'unbalanced`,
	`check test/1.sh mine "$x" twice`,
	`check test/1.sh mine() { holds "$1"; }`,
	`check test/1.sh row two'`,
	`check test/1.sh run it || fail "over`,
	`check test/1.sh table='row one`,
	`check test/1.sh two lines"`,
	`check test/internal/p "guest: %w"`,
	`check test/internal/p "it works"`,
	`check test/lib.sh [ -s "$1" ] || fail "$1"`,
	`check test/lib.sh fail() { echo "FAIL $*" >&2; exit 1; }`,
	`check cmd/x/testdata/script/s.txtar exits 1 x`,
	`check cmd/x/testdata/script/s.txtar stderr 'a b'`,
	`check cmd/x/testdata/script/s.txtar stderr 'a b' #2`,
	`main a TestMain`,
	`bench a BenchmarkB`,
	`corpus a FuzzX/0123`,
	`example a Example`,
	`fuzz a FuzzX`,
	`subbench a BenchmarkB/part`,
	`subtest a TestTable/known_name`,
	`subtest a TestTable/known_name/deep`,
	`test a TestPlain`,
	`test a TestSkipped`,
	`test a TestTable`,
}

func differ(got string, want []string) string {
	var b strings.Builder
	have := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	for _, l := range have {
		if !slices.Contains(want, l) {
			b.WriteString("too much: " + l + "\n")
		}
	}
	for _, l := range want {
		if !slices.Contains(have, l) {
			b.WriteString("missing:  " + l + "\n")
		}
	}
	return b.String()
}

func TestStaticList(t *testing.T) {
	var out, errs strings.Builder
	if err := run([]string{"list", treetest.New(t, small)}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if d := differ(out.String(), smallStatic); d != "" {
		t.Error(d)
	}
}

func TestListOfARunHasAllThatRan(t *testing.T) {
	dir := treetest.New(t, small)
	results := filepath.Join(t.TempDir(), "results")
	var errs strings.Builder
	// The second run uses the results of the first.
	for range 2 {
		var out strings.Builder
		if err := run([]string{"list", "--run", "--results", results, dir}, &out, &errs); err != nil {
			t.Fatal(err, errs.String())
		}
		if d := differ(out.String(), append([]string{
			"subtest a TestTable/first_case", "subtest a TestTable/first_case/within",
			"subtest a TestTable/second", "subtest a TestTable/second/within",
			"corpus a FuzzX/seed#0", "subbench a BenchmarkB/dev",
		}, smallStatic...)); d != "" {
			t.Error(d)
		}
	}
	if n := strings.Count(errs.String(), "testing a\n"); n != 1 {
		t.Errorf("package a ran %d times: %s", n, errs.String())
	}
	if !strings.Contains(errs.String(), "skip: "+tree.Module+"/a TestSkipped\n") {
		t.Errorf("what was skipped is not said: %s", errs.String())
	}
}

func TestResultsThatDoNotEndAreAnError(t *testing.T) {
	_, err := readEvents(strings.NewReader(`{"Action":"start","Package":"p/a"}`+"\n"+
		`{"Action":"run","Package":"p/a","Test":"TestX"}`+"\n"), &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "p/a did not end") {
		t.Errorf("error %v", err)
	}
	if _, err := readResults(t.TempDir(), &strings.Builder{}); err == nil {
		t.Error("a directory without results is taken")
	}
}

func TestClosingTable(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		treetest.Write(t, name, text)
		return name
	}
	old := file("old", "# at some commit\ntest a TestKept\ntest a TestX\ncheck s.sh fail it\n")
	now := file("new", "test a TestKept\ntest a TestY\ntest b TestScript\n")
	mapping := file("heirs", "test a TestX -> test a TestY\ncheck s.sh * -> test b TestScript\n")
	var out, errs strings.Builder
	if err := run([]string{"heirs", "--moved", old, now, mapping}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	want := "test a TestX -> test a TestY\ncheck s.sh fail it -> test b TestScript\n"
	if out.String() != want {
		t.Errorf("table:\n%swant:\n%s", out.String(), want)
	}
	mapping = file("heirs", "check s.sh * -> test b TestScript\n")
	err := run([]string{"heirs", old, now, mapping}, &out, &errs)
	if err == nil || !strings.Contains(err.Error(), "no heir: test a TestX") {
		t.Errorf("error %v", err)
	}
	if err := run([]string{"heirs", file("empty", "# none\n"), now, file("none", "")}, &out, &errs); err == nil {
		t.Error("an empty inventory is closed")
	}
}
