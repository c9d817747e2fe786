package api

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/testkit"
)

const (
	module   = "vnic.dev/vnic"
	root     = "../.."
	listFile = "internal/api/packages.txt"
)

//go:embed packages.txt
var list string

func apiPackages() (dirs []string) {
	for line := range strings.Lines(list) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			dirs = append(dirs, strings.TrimSpace(line))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

type checkout struct {
	packages map[string]*types.Package
	fset     *token.FileSet
}

func load(ctx context.Context, root, module string, dirs []string) (*checkout, error) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, d := range dirs {
		args = append(args, "./"+d)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, &stderr)
	}
	exported := map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		exported[pkg] = file
	}
	c := &checkout{map[string]*types.Package{}, token.NewFileSet()}
	from := importer.ForCompiler(c.fset, "gc", func(pkg string) (io.ReadCloser, error) { return os.Open(exported[pkg]) })
	for _, d := range dirs {
		if c.packages[d], err = from.Import(module + "/" + d); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func TestAPIExportsNothingButAPI(t *testing.T) {
	c := testkit.Must(load(t.Context(), root, module, apiPackages()))(t)
	for _, o := range c.offences(module) {
		t.Error(o)
	}
}

// The lines of testdata/m/api/api.go that export types that are not API end in a comment with the offending names.
func TestOffencesAreFound(t *testing.T) {
	const module = "example.org/m"
	c := testkit.Must(load(t.Context(), "testdata/m", module, []string{"api", "api/more"}))(t)
	src := testkit.Must(os.ReadFile("testdata/m/api/api.go"))(t)
	var want, got []string
	for i, text := range strings.Split(string(src), "\n") {
		_, offends, _ := strings.Cut(text, "// offends: ")
		for _, owner := range strings.Fields(offends) {
			want = append(want, fmt.Sprintf("api.go:%d: api.%s", i+1, owner))
		}
	}
	for _, o := range c.offences(module) {
		got = append(got, fmt.Sprintf("%s:%d: %s", filepath.Base(o.pos.Filename), o.pos.Line, o.owner))
		if !strings.HasPrefix(o.typ, module+"/hidden.") {
			t.Error(o)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, slices.Compact(got)); d != "" {
		t.Errorf("found (-want +got)\n%s", d)
	}
}

func TestPackageThatCannotBeLoadedIsAnError(t *testing.T) {
	for _, dir := range []string{"broken", "absent"} {
		_, err := load(t.Context(), "testdata/m", "example.org/m", []string{dir})
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v", err)
		}
	}
}
