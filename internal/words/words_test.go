package words

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

const (
	root = "../.."
	list = "testdata/exceptions.txt"
)

var update = flag.Bool("update", false, "lower the counts in "+list+"; none is ever raised")

// forbidden are names that declarations in Go must not use, because they do not describe anything.
var forbidden = strings.Fields("said told knows is of how at mine own others")

// riddle matches phrases, called riddles here, that hide the subject or the object of a sentence.
var riddle = regexp.MustCompile(`(?i)\b(says whether|tells whether|knows (of|whether)|(is|are) told|` +
	`those (that|of|which)|has (it|them|him) |what (is|was|are) (of|to be|held|wanted|there)|that of (one|it)|` +
	`is (nobody|somebody|everybody)'s|of (which|whom) )`)

type count struct{ names, riddles int }

// exceptions.txt has entries "FOLDER names=N riddles=N": how many forbidden names and riddles the folder's files may
// have. An empty line between entries lets branches merge that lower different entries.
//
// Invariant: words: No folder has more names that tell nothing, and more riddles in comments and
// pages, than its exceptions.
func TestWordsArePlain(t *testing.T) {
	found := scan(t)
	listed := readList(t)
	for _, dir := range slices.Sorted(maps.Keys(found.counts)) {
		n, old := found.counts[dir], listed[dir]
		if n.names > old.names || n.riddles > old.riddles {
			t.Errorf("%s: %d names and %d riddles, %d and %d are listed:\n%s", dir, n.names, n.riddles,
				old.names, old.riddles, strings.Join(found.places[dir], "\n"))
		}
	}
	for dir, old := range listed {
		n := found.counts[dir]
		lower := count{min(n.names, old.names), min(n.riddles, old.riddles)}
		if lower != old && !*update {
			t.Errorf("%s: %d names and %d riddles, %d and %d are listed: go test ./internal/words -update lowers them",
				dir, n.names, n.riddles, old.names, old.riddles)
		}
		listed[dir] = lower
	}
	if *update {
		testkit.OK(t, os.WriteFile(list, []byte(format(listed)), 0o644))
	}
}

func readList(t *testing.T) map[string]count {
	listed := map[string]count{}
	for line := range strings.Lines(string(testkit.Must(os.ReadFile(list))(t))) {
		if line == "\n" || strings.HasPrefix(line, "#") {
			continue
		}
		var dir string
		var n count
		if _, err := fmt.Sscanf(line, "%s names=%d riddles=%d\n", &dir, &n.names, &n.riddles); err != nil {
			t.Fatalf("%s: %q: %v", list, line, err)
		}
		listed[dir] = n
	}
	return listed
}

func format(listed map[string]count) string {
	text := "# Forbidden names and riddles that are still there, by folder. Written by go test ./internal/words -update.\n"
	for _, dir := range slices.Sorted(maps.Keys(listed)) {
		if n := listed[dir]; n != (count{}) {
			text += fmt.Sprintf("\n%s names=%d riddles=%d\n", dir, n.names, n.riddles)
		}
	}
	return text
}

// finds has, by folder, the counts and a line for each hit.
type finds struct {
	counts map[string]count
	places map[string][]string
}

func (f *finds) add(file string, line int, n count, text string) {
	dir := path.Dir(file)
	sum := f.counts[dir]
	f.counts[dir] = count{sum.names + n.names, sum.riddles + n.riddles}
	f.places[dir] = append(f.places[dir], fmt.Sprintf("\t%s:%d: %q", file, line, text))
}

func (f *finds) prose(file string, line int, text string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, hit := range riddle.FindAllString(text, -1) {
		f.add(file, line, count{riddles: 1}, hit)
	}
}

func scan(t *testing.T) *finds {
	ls := exec.Command("git", "ls-files", "*.go", "*.c", "*.h", "*.md")
	ls.Dir = root
	files := strings.Fields(string(testkit.Must(ls.Output())(t)))
	if len(files) < 1000 {
		t.Fatalf("%d files found: is that the whole tree?", len(files))
	}
	f := &finds{map[string]count{}, map[string][]string{}}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) || strings.Contains(file, "/testdata/") || strings.Contains(file, "/vendor/") {
			continue // deleted but still in git's index, test data, or another project's
		}
		testkit.OK(t, err)
		switch path.Ext(file) {
		case ".go":
			f.source(t, file, text)
		case ".md":
			if dir := path.Dir(file); dir == "docs" || file == "README.md" || file == "ARCHITECTURE.md" {
				f.paragraphs(file, string(text))
			}
		default:
			for _, m := range cComment.FindAllIndex(text, -1) {
				f.prose(file, 1+strings.Count(string(text[:m[0]]), "\n"), unstar(string(text[m[0]:m[1]])))
			}
		}
	}
	return f
}

func (f *finds) source(t *testing.T, file string, text []byte) {
	set := token.NewFileSet()
	tree := testkit.Must(parser.ParseFile(set, file, text, parser.ParseComments|parser.SkipObjectResolution))(t)
	for _, name := range declared(tree) {
		if slices.Contains(forbidden, name.Name) {
			f.add(file, set.Position(name.Pos()).Line, count{names: 1}, name.Name)
		}
	}
	for _, group := range tree.Comments {
		f.prose(file, set.Position(group.Pos()).Line, group.Text())
	}
}

func (f *finds) paragraphs(file, text string) {
	line := 1
	for p := range strings.SplitSeq(text, "\n\n") {
		f.prose(file, line, p)
		line += strings.Count(p, "\n") + 2
	}
}

var (
	cComment = regexp.MustCompile(`(?s)/\*.*?\*/|(?m)(?:^\s*//.*\n)+|//.*$`)
	star     = regexp.MustCompile(`(?m)^\s*(?:/\*+|\*/?|//)`)
)

// unstar removes spaces and the marks /*, *, */ and // from the starts of a C comment's lines.
func unstar(text string) string { return star.ReplaceAllString(text, "") }

func declared(tree *ast.File) (names []*ast.Ident) {
	add := func(list ...ast.Expr) {
		for _, x := range list {
			if name, ok := x.(*ast.Ident); ok {
				names = append(names, name)
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.ImportSpec:
			if n.Name != nil {
				add(n.Name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key, n.Value)
			}
		case *ast.LabeledStmt:
			add(n.Label)
		}
		return true
	})
	return names
}

func TestHitsAreFound(t *testing.T) {
	f := &finds{map[string]count{}, map[string][]string{}}
	f.source(t, "a/a.go", []byte(`package a
// F says
// whether x is one of those that are left.
func F(at int, told func(how bool)) (of error) {
	if _, is := x.(T); is { return }
	for own := range at {}
	var mine, Own = s.knows, 1
	return
}
type T struct { said bool; knows func() } // it is told
`))
	testkit.Equal(t, "hits", f.counts["a"], count{names: 9, riddles: 3})
	f.paragraphs("b/b.md", "# One\n\nText.\n\nA page of which\nnothing is told.\n")
	testkit.Equal(t, "hits in a page", f.counts["b"], count{riddles: 2})
	testkit.Equal(t, "place", f.places["b"][0], "\t"+`b/b.md:5: "of which "`)
	testkit.Equal(t, "C", unstar("/* it is\n * told */"), " it is\n told */")
}
