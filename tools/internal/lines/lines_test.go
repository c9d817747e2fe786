package lines

import (
	"testing"

	"vnic.dev/vnic/tools/internal/tree"
)

func TestCommentsAndBlankLinesAreNotCounted(t *testing.T) {
	for _, c := range []struct {
		name string
		lang tree.Language
		src  string
		want int
	}{
		{"Go", tree.Go, "// Package a.\npackage a\n\n/* one\n   two */\nvar x = 1 // end\n", 2},
		{"Go, a comment's signs in strings", tree.Go, "package a\n\nvar x = \"// no\"\nvar y = `/*\n\n// in it\n*/`\n", 5},
		{"Go, code after a block comment", tree.Go, "package a\n/* x\n*/ var y int\n", 2},
		{"Go, a brace alone", tree.Go, "package a\n\nfunc f() {\n\n}\n", 3},
		{"Go, without an end of line", tree.Go, "package a", 1},
		{"C", tree.C, "// a\n#include <x.h>\n/* b\n c */ int d; /* e */\nchar *f = \"/*\"; // g\n\nint h = '\\'';\n", 4},
		{"C, a block comment in a line", tree.C, "int /* a */ b;\n/* c */\n/* d */ int e;", 2},
		{"shell", tree.Shell, "#!/bin/sh\n# a\n\necho '#'\n  # b\n\techo # c\n", 2},
		{"testscript", tree.Script, "# a\nexec b\n\n-- c --\nd\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Count(c.lang, c.name, []byte(c.src))
			if err != nil || got != c.want {
				t.Errorf("%d lines, error %v, want %d", got, err, c.want)
			}
		})
	}
}

func TestGoThatDoesNotScanIsAnError(t *testing.T) {
	if _, err := Count(tree.Go, "a.go", []byte("package a\nvar x = \"open\n")); err == nil {
		t.Error("no error")
	}
}
