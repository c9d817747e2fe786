package invariants

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false, "write docs/invariants.md anew, in the place of comparing with it")

const (
	root     = "../.."
	document = root + "/docs/invariants.md"
	mark     = "Invariant: "
)

type invariant struct {
	group
	test string // name of the test, or path of the script
	by   heldBy
}

// group identifies a line of tests in the document: the tests of one package, or the scripts, for one sentence.
type group struct {
	area, sentence string
	dir            string // directory of the package; "" for scripts
}

func parse(text string) (area, sentence string, err error) {
	area, sentence, ok := strings.Cut(strings.Join(strings.Fields(text), " "), ": ")
	switch {
	case !ok || area == "" || sentence == "":
		return "", "", fmt.Errorf("%q: not AREA: SENTENCE", text)
	case !strings.HasSuffix(sentence, "."):
		return "", "", fmt.Errorf("%q: a sentence ends with a full stop", text)
	case strings.ContainsAny(sentence, "|\n"):
		return "", "", fmt.Errorf("%q: does not fit a table", text)
	}
	return area, sentence, nil
}

// comments returns the texts that follow a mark at the start of a line, up to the next mark or an empty line.
func comments(doc string) (list []string) {
	open := false
	for line := range strings.Lines(doc) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, mark); ok {
			list, open = append(list, text), true
		} else if open = open && line != ""; open {
			list[len(list)-1] += " " + line
		}
	}
	return list
}

func collect(dir string) (list []invariant, err error) {
	left, err := leftOut(dir)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var found []invariant
		switch filepath.Ext(path) {
		case ".go":
			found, err = inGo(path, filepath.ToSlash(filepath.Dir(rel)), left)
		case ".sh":
			found, err = inScript(path, filepath.ToSlash(rel))
		}
		list = append(list, found...)
		return err
	})
	return list, err
}

func inGo(path, dir string, left map[function]heldBy) (list []invariant, err error) {
	src, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(src), "// "+mark) {
		return nil, err
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	cases := suiteCases(f)
	want := strings.Count(string(src), "\n// "+mark)
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Doc == nil {
			continue
		}
		for _, text := range comments(fn.Doc.Text()) {
			area, sentence, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, fn.Name.Name, err)
			}
			test := cmp.Or(cases[fn.Name.Name], fn.Name.Name)
			if !strings.HasPrefix(test, "Test") && !strings.HasPrefix(test, "Fuzz") {
				return nil, fmt.Errorf("%s: %s is no test, nor a case of the suite in its file", path, test)
			}
			list = append(list, invariant{group{area, sentence, dir}, test, left[function{dir, fn.Name.Name}]})
			want--
		}
	}
	if want != 0 {
		return nil, fmt.Errorf("%s: %d invariants do not stand directly above a function", path, want)
	}
	return list, nil
}

// suiteCases returns, for a file of package nictest, the names of the suite's cases (TestNIC/NAME) by their functions:
// the suite's table has {"Name", function}. For other files it returns none.
func suiteCases(f *ast.File) map[string]string {
	cases := map[string]string{}
	if f.Name.Name != "nictest" {
		return cases
	}
	dir := filepath.Join(root, "internal/nic/nictest/suite.go")
	suite, err := parser.ParseFile(token.NewFileSet(), dir, nil, 0)
	if err != nil {
		return cases
	}
	ast.Inspect(suite, func(n ast.Node) bool {
		if c, ok := n.(*ast.CompositeLit); ok && c.Type == nil && len(c.Elts) == 2 {
			name, ok1 := c.Elts[0].(*ast.BasicLit)
			fn, ok2 := c.Elts[1].(*ast.Ident)
			if ok1 && ok2 {
				cases[fn.Name] = "TestNIC/" + strings.Trim(name.Value, `"`)
			}
		}
		return true
	})
	return cases
}

func inScript(path, rel string) (list []invariant, err error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc strings.Builder
	for line := range strings.Lines(string(src)) {
		if line, ok := strings.CutPrefix(line, "#"); ok {
			doc.WriteString(line)
		} else {
			doc.WriteByte('\n')
		}
	}
	for _, text := range comments(doc.String()) {
		area, sentence, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, invariant{group{area, sentence, ""}, rel, byScript})
	}
	return list, nil
}

const head = `# Invariants

What vnic promises, and the tests that check it. This page is made from the comments above the tests: change them
there, and write the page with ` + "`go test ./internal/invariants -update`" + `.

` + "`TestNIC/...`" + ` are cases of the suite in ` + "`internal/nic/nictest`" + `, which each device model passes.

A mark after a sentence means that only such tests check it: (long) tests outside of ` + "`test/internal/guests`" + `
that run only with VNIC_LONG set, mostly because they boot guests; (script) a script of ` + "`test`" + `.
`

func render(list []invariant) string {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b invariant) int {
		return cmp.Or(cmp.Compare(a.area, b.area), cmp.Compare(a.sentence, b.sentence), cmp.Compare(a.dir, b.dir),
			cmp.Compare(a.test, b.test))
	})
	var b strings.Builder
	b.WriteString(head)
	var last group
	for len(list) > 0 {
		i := list[0].group
		if i.area != last.area {
			fmt.Fprintf(&b, "\n## %s\n\n", i.area)
		}
		if i.area != last.area || i.sentence != last.sentence {
			b.WriteString(wrap(i.sentence+easiest(list), "- ", "  ") + "\n")
		}
		last = i
		var tests []string
		for len(list) > 0 && list[0].group == i {
			tests = append(tests, "`"+list[0].test+"`")
			list = list[1:]
		}
		b.WriteString(wrap(cmp.Or(i.dir, "script")+": "+strings.Join(tests, ", "), "  - ", "    ") + "\n")
	}
	return b.String()
}

func wrap(text, first, rest string) string {
	var b strings.Builder
	line := first
	for i, w := range strings.Fields(text) {
		switch {
		case i == 0:
			line += w
		case len(line)+1+len(w) > 120:
			b.WriteString(line + "\n")
			line = rest + w
		default:
			line += " " + w
		}
	}
	return b.String() + line
}

func TestDocumentIsWhatTheTestsSay(t *testing.T) {
	list := testkit.Must(collect(root))(t)
	want := render(list)
	if *update {
		testkit.OK(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	got := testkit.Must(os.ReadFile(document))(t)
	if string(got) != want {
		t.Errorf("%s is not what the comments above the tests say: go test ./internal/invariants -update", document)
	}
}

// Each line of testdata/780d5150.txt is an invariant of that commit. A test or a script still has it,
// in the same words or in the words after "->".
func TestNoSentenceIsLost(t *testing.T) {
	held := map[string]bool{}
	for _, i := range testkit.Must(collect(root))(t) {
		held[i.area+": "+i.sentence] = true
	}
	list := string(testkit.Must(os.ReadFile("testdata/780d5150.txt"))(t))
	n := 0
	for line := range strings.Lines(list) {
		n++
		old, now, renamed := strings.Cut(strings.TrimSuffix(line, "\n"), " -> ")
		if !renamed {
			now = old
		}
		if !held[now] {
			t.Errorf("no test holds any more: %s", now)
		}
	}
	testkit.Equal(t, "sentences at 780d5150", n, 349)
}

func TestMistakesAreFound(t *testing.T) {
	for name, c := range map[string]struct{ file, src, err string }{
		"good":        {"a_test.go", "// X.\n//\n// Invariant: a: B c\n// d.\n// Invariant: a: E.\nfunc TestX() {}\n", ""},
		"no sentence": {"a_test.go", "// Invariant: b.\nfunc TestX() {}\n", "not AREA: SENTENCE"},
		"no stop":     {"a_test.go", "// Invariant: a: B\nfunc TestX() {}\n", "full stop"},
		"no test":     {"a_test.go", "// Invariant: a: B.\nfunc x() {}\n", "is no test"},
		"loose":       {"a_test.go", "// Invariant: a: B.\n\nfunc TestX() {}\n", "do not stand directly above"},
		"script":      {"a.sh", "# Invariant: a: B c\n# d.\n", ""},
		"bad script":  {"a.sh", "# Invariant: a: B\n", "full stop"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			src := c.src
			if filepath.Ext(c.file) == ".go" {
				src = "package a\n\n" + src
			}
			testkit.OK(t, os.WriteFile(filepath.Join(dir, c.file), []byte(src), 0o644))
			list, err := collect(dir)
			if c.err == "" && (err != nil || len(list) == 0 || list[0].sentence != "B c d.") ||
				c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}
