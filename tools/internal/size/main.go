// Command size counts the lines of a checkout. See the head of tools/size.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"vnic.dev/vnic/tools/internal/lines"
	"vnic.dev/vnic/tools/internal/tree"
)

const usage = `usage: tools/size [--packages] [--most N] [--beside N] [DIR]
       tools/size --wide [--columns N] [DIR]
its head tells more
`

// errTold is the error of run after it has printed the usage.
var errTold = errors.New("told")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, errTold) {
			fmt.Fprintln(os.Stderr, "size:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("size", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	packages := flags.Bool("packages", false, "")
	most := flags.Int("most", 0, "")
	beside := flags.Int("beside", 0, "")
	wide := flags.Bool("wide", false, "")
	columns := flags.Int("columns", 120, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 1 {
		if err != nil && !errors.Is(err, flag.ErrHelp) {
			return fmt.Errorf("%w\n%s", err, usage)
		}
		fmt.Fprint(out, usage)
		return errTold
	}
	dir := "."
	if flags.NArg() == 1 {
		dir = flags.Arg(0)
	}
	files, err := tree.Files(dir)
	if err != nil {
		return err
	}
	if *wide {
		return tooWide(out, dir, files, *columns)
	}
	sums, err := count(dir, files)
	if err != nil {
		return err
	}
	if err := sums.print(out, *packages); err != nil {
		return err
	}
	return sums.judge(*most, *beside)
}

type kind struct {
	class tree.Class
	lang  tree.Language
}

// sizes has the lines of code by directory and kind. A file below testdata counts for the directory that has testdata.
type sizes map[string]map[kind]int

func count(dir string, files []string) (sizes, error) {
	sums := sizes{}
	for _, name := range files {
		lang := tree.LanguageOf(dir, name)
		if lang == tree.Data || lang == tree.Markdown || lang == tree.Other {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		class := tree.ClassOf(name)
		if class == tree.Product && lang == tree.Go {
			if err := noTesting(name, src); err != nil {
				return nil, err
			}
		}
		n, err := lines.Count(lang, name, src)
		if err != nil {
			return nil, err
		}
		d := path.Dir(name)
		if i := strings.Index("/"+name, "/testdata/"); i >= 0 {
			d = path.Clean(name[:i])
		}
		if sums[d] == nil {
			sums[d] = map[kind]int{}
		}
		sums[d][kind{class, lang}] += n
	}
	return sums, nil
}

// noTesting returns an error if src, a product file in Go, imports testing.
func noTesting(name string, src []byte) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return err
	}
	for _, imp := range f.Imports {
		if imp.Path.Value == `"testing"` {
			return fmt.Errorf("%s imports testing: add its directory to tree.Support in tools/internal/tree", name)
		}
	}
	return nil
}

func (s sizes) sum(take func(kind) bool) int {
	n := 0
	for _, byKind := range s {
		for k, v := range byKind {
			if take(k) {
				n += v
			}
		}
	}
	return n
}

func class(want ...tree.Class) func(kind) bool {
	return func(k kind) bool { return slices.Contains(want, k.class) }
}

func (s sizes) print(out io.Writer, packages bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if packages {
		fmt.Fprintln(w, "product\ttest\tsupport\tacceptance\ttools\t  directory")
		for _, d := range slices.Sorted(maps.Keys(s)) {
			for _, c := range []tree.Class{tree.Product, tree.Test, tree.TestHelp, tree.Acceptance, tree.Tools} {
				fmt.Fprintf(w, "%d\t", sizes{d: s[d]}.sum(class(c)))
			}
			fmt.Fprintf(w, "  %s\n", d)
		}
		fmt.Fprintln(w, "\t\t\t\t\t")
	}
	fmt.Fprintln(w, "lines\tclass\t  language")
	for _, c := range []tree.Class{tree.Product, tree.Test, tree.TestHelp, tree.Acceptance, tree.Tools} {
		for _, l := range []tree.Language{tree.Go, tree.Assembly, tree.C, tree.Shell, tree.Python, tree.Script} {
			if n := s.sum(func(k kind) bool { return k == kind{c, l} }); n > 0 {
				fmt.Fprintf(w, "%d\t%s\t  %s\n", n, c, l)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "product: %d lines\n", s.sum(class(tree.Product)))
	fmt.Fprintf(out, "tests, support and acceptance: %d lines\n", s.sum(class(tree.Test, tree.TestHelp, tree.Acceptance)))
	return nil
}

func (s sizes) judge(most, beside int) error {
	if n := s.sum(class(tree.Product)); most > 0 && n > most {
		return fmt.Errorf("product: %d lines, %d more than --most %d", n, n-most, most)
	}
	if n := s.sum(class(tree.Test, tree.TestHelp, tree.Acceptance)); beside > 0 && n > beside {
		return fmt.Errorf("tests, support and acceptance: %d lines, %d more than --beside %d", n, n-beside, beside)
	}
	return nil
}

// tooWide prints the places of lines with more than columns characters, and returns an error if there are any. It skips
// data, golden files and the lists of tools/inventory.
func tooWide(out io.Writer, dir string, files []string, columns int) error {
	n := 0
	for _, name := range files {
		list := strings.HasPrefix(name, "tools/inventory/") && path.Ext(name) == ".txt"
		// Golden files have output byte for byte: nobody can break its lines.
		golden := strings.Contains("/"+name, "/testdata/golden")
		if list || golden || tree.LanguageOf(dir, name) == tree.Data {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		number := 0
		for line := range strings.Lines(string(src)) {
			number++
			if long := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); long > columns {
				fmt.Fprintf(out, "%s:%d: %d characters\n", name, number, long)
				n++
			}
		}
	}
	if n > 0 {
		return fmt.Errorf("%d lines have more than %d characters: break them", n, columns)
	}
	return nil
}
