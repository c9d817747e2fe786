// Package lines counts the lines of code of a file.
package lines

import (
	"fmt"
	"go/scanner"
	"go/token"
	"strings"

	"vnic.dev/vnic/tools/internal/tree"
)

// Count counts the lines of code in src.
//
//   - Go: lines with a token on them, by go/scanner. A raw string counts each of its lines that is
//     not blank. Directives (//go:build, //go:embed) are comments.
//   - C and assembly: lines with text outside comments.
//   - Shell, Python, testscripts and others: lines that are not blank and do not begin with #, after spaces or not.
//     The files after a testscript are not counted.
func Count(lang tree.Language, name string, src []byte) (int, error) {
	switch lang {
	case tree.Go:
		return countGo(name, src)
	case tree.C, tree.Assembly:
		return countC(src), nil
	}
	n := 0
	for line := range strings.Lines(string(src)) {
		if lang == tree.Script && strings.HasPrefix(line, "-- ") {
			break
		}
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n, nil
}

func countGo(name string, src []byte) (int, error) {
	fset := token.NewFileSet()
	file := fset.AddFile(name, -1, len(src))
	var bad error
	var s scanner.Scanner
	s.Init(file, src, func(pos token.Position, msg string) {
		if bad == nil {
			bad = fmt.Errorf("%s: %s", pos, msg)
		}
	}, 0)
	n, last := 0, 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return n, bad
		}
		if tok == token.SEMICOLON && lit == "\n" { // inserted by the scanner
			continue
		}
		first := file.Line(pos)
		for i, text := range strings.Split(lit, "\n") {
			if line := first + i; line > last && (i == 0 || strings.TrimSpace(text) != "") {
				n, last = n+1, line
			}
		}
	}
}

func countC(src []byte) int {
	const (
		code = iota
		line
		block
	)
	n, state, quote, seen := 0, code, byte(0), false
	for i := 0; i < len(src); i++ {
		c := src[i]
		two := c == '/' && i+1 < len(src)
		switch {
		case c == '\n':
			if seen {
				n++
			}
			seen = false
			if state == line {
				state = code
			}
		case state == block:
			if c == '*' && i+1 < len(src) && src[i+1] == '/' {
				state = code
				i++
			}
		case state == line || c == ' ' || c == '\t' || c == '\r':
		case quote != 0:
			seen = true
			if c == '\\' && i+1 < len(src) && src[i+1] != '\n' {
				i++
			} else if c == quote {
				quote = 0
			}
		case two && src[i+1] == '/':
			state = line
		case two && src[i+1] == '*':
			state = block
			i++
		default:
			seen = true
			if c == '"' || c == '\'' {
				quote = c
			}
		}
	}
	if seen {
		n++
	}
	return n
}
