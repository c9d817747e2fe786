package api

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

const (
	isAPI  = "The package is API"
	notAPI = "not API"
)

func docOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	testkit.OK(t, err)
	var doc strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		tree := testkit.Must(parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly|parser.ParseComments))(t)
		doc.WriteString(tree.Doc.Text())
	}
	return doc.String()
}

// The documentation of each API package states that it is API. The documentation of each other package that is neither
// internal nor a program, or of a package above it, states that it is not API.
func TestPackagesSayWhetherTheyAreAPI(t *testing.T) {
	says := map[string]bool{}
	list := exec.Command("go", "list", "-f", "{{.Name}}\t{{.ImportPath}}", "./...")
	list.Dir = root
	out := testkit.Must(list.Output())(t)
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		name, dir := f[0], strings.TrimPrefix(f[1], module+"/")
		doc := docOf(t, filepath.Join(root, dir))
		says[dir] = strings.Contains(doc, notAPI) || says[path.Dir(dir)]
		switch {
		case name == "main" || slices.Contains(strings.Split(dir, "/"), "internal"):
		case slices.Contains(apiPackages(), dir):
			if !strings.Contains(doc, isAPI) || strings.Contains(doc, notAPI) {
				t.Errorf("%s is in %s: its documentation must say %q", dir, listFile, isAPI)
			}
		case !says[dir] || strings.Contains(doc, isAPI):
			t.Errorf("%s is not in %s, and its documentation does not say that it is %s", dir, listFile, notAPI)
		}
	}
	if len(says) < 40 {
		t.Errorf("%d packages", len(says))
	}
}

func TestReadmeNamesTheAPI(t *testing.T) {
	b := testkit.Must(os.ReadFile(filepath.Join(root, "README.md")))(t)
	_, section, ok := strings.Cut(string(b), "\n## Stability\n")
	if !ok {
		t.Fatal("README.md has no section Stability")
	}
	section, _, _ = strings.Cut(section, "\n\n")
	var named []string
	for i, word := range strings.Split(section, "`") {
		if i%2 == 1 {
			named = append(named, word)
		}
	}
	slices.Sort(named)
	if !slices.Equal(named, apiPackages()) {
		t.Errorf("README.md names %q, %s %q", named, listFile, apiPackages())
	}
}

// notAPIButVisible lists packages that are not API although their paths allow other modules to import them, without the
// ones in test, tools and docs.
var notAPIButVisible = []string{"cmd/vnic", "gpumem", "guest-images", "stack"}

func TestNothingElseCanBeImported(t *testing.T) {
	list := exec.Command("go", "list", "./...")
	list.Dir = root
	out := testkit.Must(list.Output())(t)
	var visible []string
	for p := range strings.FieldsSeq(string(out)) {
		dir := strings.TrimPrefix(p, module+"/")
		dirs := strings.Split(dir, "/")
		if !slices.Contains(dirs, "internal") && !slices.Contains([]string{"test", "tools", "docs"}, dirs[0]) {
			visible = append(visible, dir)
		}
	}
	want := slices.Sorted(slices.Values(slices.Concat(apiPackages(), notAPIButVisible)))
	if !slices.Equal(visible, want) {
		t.Errorf("other modules can import %q, want %q", visible, want)
	}
}
