package limits_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

const (
	fileLines     = 500 // with blank lines and comments
	functionLines = 80
)

// notProduct matches the names of files that may be longer, and whose functions may be longer.
var notProduct = regexp.MustCompile(`_test\.go$|^test/|^tools/|(^|/)testdata/|^internal/(nic|wire)/`)

// cFunction matches a function in C, from the first line of its declaration to its last line.
var cFunction = regexp.MustCompile(`(?m)^[a-z][^;{}=]*\([^;{}]*\)\n\{\n(?s:.*?)^\}`)

// Invariant: limits: Outside of internal/nic and internal/wire no file of the product has more than 500
// lines, and no function more than 80.
func TestFilesAndFunctionsAreShort(t *testing.T) {
	root := filepath.Join("..", "..")
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "*.go", "*.c", "*.h")
	git.Dir = root
	names := strings.Split(strings.Trim(string(testkit.Must(git.Output())(t)), "\x00"), "\x00")
	files, functions := 0, 0
	for _, name := range names {
		if notProduct.MatchString(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed, but in git's index
		}
		testkit.OK(t, err)
		files++
		if n := bytes.Count(text, []byte("\n")); n > fileLines {
			t.Errorf("%s: %d lines, at most %d", name, n, fileLines)
		}
		for function, n := range lengths(t, name, text) {
			functions++
			if n > functionLines {
				t.Errorf("%s: %s: %d lines, at most %d", name, function, n, functionLines)
			}
		}
	}
	if files < 100 || functions < 1000 {
		t.Errorf("%d files with %d functions: is that the whole product?", files, functions)
	}
}

// lengths returns how many lines each function of a file in Go or C has, by the function's first line.
func lengths(t *testing.T, name string, text []byte) map[string]int {
	found := map[string]int{}
	if !strings.HasSuffix(name, ".go") {
		for _, f := range cFunction.FindAllString(string(text), -1) {
			first, _, _ := strings.Cut(f, "\n")
			found[first] = strings.Count(f, "\n") + 1
		}
		return found
	}
	set := token.NewFileSet()
	tree := testkit.Must(parser.ParseFile(set, name, text, parser.SkipObjectResolution))(t)
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			from, to := set.Position(f.Pos()), set.Position(f.End())
			first, _, _ := strings.Cut(string(text[from.Offset:to.Offset]), "\n")
			found[first] = to.Line - from.Line + 1
		}
	}
	return found
}

func TestFunctionsAreMeasured(t *testing.T) {
	got := lengths(t, "x.go", []byte("package x\n\n// a is short.\nfunc a() {}\n\nfunc (b) c(\n) {\n\tfor {\n\t}\n}\n"))
	testkit.Equal(t, "functions in Go", len(got), 2)
	testkit.Equal(t, "lines of a", got["func a() {}"], 1)
	testkit.Equal(t, "lines of c", got["func (b) c("], 5)
	got = lengths(t, "x.c", []byte("int d(void);\nstruct e {\n\tint f;\n};\n\nint g(int h,\n      int i)\n{\n\tif (h) {\n"+
		"\t}\n}\nstatic const struct e j = {\n\t.k = 1,\n};\n\nvoid l(void)\n{\n}\n"))
	testkit.Equal(t, "functions in C", len(got), 2)
	testkit.Equal(t, "lines of g", got["int g(int h,"], 6)
	testkit.Equal(t, "lines of l", got["void l(void)"], 3)
}
