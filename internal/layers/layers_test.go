package layers

import (
	"bytes"
	_ "embed" // embeds the table
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

const module = "vnic.dev/vnic/"

// everywhere lists the packages that any package may import, everywhereInTests more packages that any package's tests
// may import.
const (
	everywhere        = "internal/deadline internal/limits internal/outfile internal/scm"
	everywhereInTests = "internal/golden internal/testkit"
)

// layer has the packages of this module that a package may import, and more packages that its tests may import.
type layer struct {
	pkg            string
	imports, tests []string
}

// table has a line "PACKAGE: IMPORTS..." for a package, below the lines of its imports. Indented lines continue it;
// from an indented "tests:" on, they have imports for the package's tests. A package without a line may import only
// the packages of everywhere.
//
//go:embed layers.txt
var table string

var layers = func() (list []layer) {
	tests := false
	for line := range strings.Lines(table) {
		line, _, _ = strings.Cut(line, "#")
		if name, rest, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "\t") {
			list, line, tests = append(list, layer{pkg: name}), rest, false
		} else if rest, ok := strings.CutPrefix(line, "\ttests:"); ok {
			line, tests = rest, true
		}
		if len(list) == 0 {
			continue
		}
		if l := &list[len(list)-1]; tests {
			l.tests = append(l.tests, strings.Fields(line)...)
		} else {
			l.imports = append(l.imports, strings.Fields(line)...)
		}
	}
	return list
}()

// foreign lists packages: outside of tests, pkg may not import a package whose path begins with the text in not.
var foreign = []struct{ pkg, not string }{
	{"devmem", "gvisor.dev/"}, {"devmem/kernel", "gvisor.dev/"}, {"internal/driver", "gvisor.dev/"},
	{"guest", "gvisor.dev/"},
	{"dma", "gvisor.dev/"}, {"virtq", "gvisor.dev/"}, {"vhostuser", "gvisor.dev/"}, {"vfiouser", "gvisor.dev/"},
	{"splitter", "gvisor.dev/"},
}

// unsafeFiles lists the files, beside tests, that may import unsafe; a name with a final slash stands for the files of
// a package.
var unsafeFiles = []string{"dma/", "virtq/", "stack/shadow.go", "devmem/kernel/sys.go", "internal/confine/sys.go",
	"test/internal/guestops/ioctl.go"}

type pkg struct {
	ImportPath, Dir                    string
	GoFiles, CgoFiles, IgnoredGoFiles  []string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) (list []pkg) {
	t.Helper()
	const fields = "ImportPath,Dir,GoFiles,CgoFiles,IgnoredGoFiles,Imports,TestImports,XTestImports"
	out, err := exec.Command("go", "list", "-e", "-json="+fields, module+"...").Output()
	testkit.OK(t, err)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// broken returns a message for each forbidden import of a package.
func broken(p *pkg) (list []string) {
	name := strings.TrimPrefix(p.ImportPath, module)
	var row layer
	if i := slices.IndexFunc(layers, func(l layer) bool { return l.pkg == name }); i >= 0 {
		row = layers[i]
	}
	may := slices.Concat(row.imports, strings.Fields(everywhere))
	inTests := slices.Concat(row.tests, strings.Fields(everywhereInTests), []string{name}, may)
	check := func(what string, imports, allowed []string) {
		for _, i := range imports {
			if path, ours := strings.CutPrefix(i, module); ours && !slices.Contains(allowed, path) {
				list = append(list, fmt.Sprintf("%s%s imports %s: the table of layers does not allow it", what, name, path))
			}
			for _, f := range foreign {
				if what == "" && f.pkg == name && strings.HasPrefix(i, f.not) {
					list = append(list, fmt.Sprintf("%s imports %s", name, i))
				}
			}
		}
	}
	check("", p.Imports, may)
	check("a test of ", append(slices.Clone(p.TestImports), p.XTestImports...), inTests)
	return list
}

// Invariant: layers: Imports point down, and unsafe stays where it is.
func TestImportsPointDown(t *testing.T) {
	list := packages(t)
	if len(list) < 40 {
		t.Fatalf("go list knows %d packages", len(list))
	}
	seen := map[string]bool{}
	for i := range list {
		for _, b := range broken(&list[i]) {
			t.Error(b)
		}
		seen[strings.TrimPrefix(list[i].ImportPath, module)] = true
	}
	for i, l := range layers {
		if !seen[l.pkg] {
			t.Errorf("the table names %s, which is not there", l.pkg)
		}
		for _, below := range l.imports {
			if slices.ContainsFunc(layers[i:], func(o layer) bool { return o.pkg == below }) {
				t.Errorf("the table has %s, which %s imports, below it", below, l.pkg)
			}
		}
	}
}

func TestForbiddenImportsAreFound(t *testing.T) {
	for name, imports := range map[string]string{
		"internal/control":      "vhostuser virtq vfiouser",
		"devmem":                "gvisor.dev/gvisor/pkg/tcpip",
		"devmem/kernel":         "internal/nic/gve internal/control",
		"dma":                   "virtq",
		"internal/driver":       "internal/wire internal/nic",
		"gpumem":                "vhostuser vfiouser",
		"internal/lab":          "internal/machine/qemu",
		"new":                   "dma",
		"internal/nic":          "internal/nic/virtio vhostuser vfiouser internal/golden",
		"internal/nic/gve":      "vhostuser virtq internal/nic/virtio",
		"internal/nic/virtio":   "internal/nic/gve internal/agent vfiouser",
		"internal/machine/qemu": "internal/nic/virtio",
		"splitter":              "virtq vfiouser",
		"stack":                 "cmd/vnic",
		"vhostuser":             "internal/agent vfiouser",
		"virtq":                 "vhostuser gpumem",
		"internal/wire":         "gpumem vfiouser",
	} {
		for i := range strings.FieldsSeq(imports) {
			if !strings.HasPrefix(i, "gvisor.dev/") {
				i = module + i
			}
			p := pkg{ImportPath: module + name, Imports: []string{i}}
			if len(broken(&p)) != 1 {
				t.Errorf("%+v: %q", p, broken(&p))
			}
		}
	}
	test := pkg{ImportPath: module + "virtq", TestImports: []string{module + "internal/nic"}}
	if len(broken(&test)) != 1 {
		t.Errorf("%+v: %q", test, broken(&test))
	}
	for _, p := range []pkg{
		{ImportPath: module + "virtq", Imports: []string{module + "dma", "os"}},
		{ImportPath: module + "new", Imports: []string{"os"}, TestImports: []string{module + "internal/testkit"}},
	} {
		if b := broken(&p); len(b) != 0 {
			t.Errorf("%+v: %q", p, b)
		}
	}
}

// Invariant: layers: Imports point down, and unsafe stays where it is.
func TestUnsafeStaysWhereItIs(t *testing.T) {
	found := 0
	for _, p := range packages(t) {
		for _, f := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles) {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			tree := testkit.Must(parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.ImportsOnly))(t)
			for _, i := range tree.Imports {
				if i.Path.Value != `"unsafe"` {
					continue
				}
				found++
				name := strings.TrimPrefix(p.ImportPath, module) + "/" + f
				if !slices.Contains(unsafeFiles, name) && !slices.Contains(unsafeFiles, filepath.Dir(name)+"/") {
					t.Errorf("%s imports unsafe", name)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no file imports unsafe: is this the module?")
	}
}
