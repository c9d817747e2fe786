package labfile

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Error is an error in a lab file.
type Error struct {
	Name         string
	Line, Column int // from 1; 0: no place
	Text         string
	Source       string // lines of the file with a mark at the error; may be ""
}

func (e *Error) Error() string {
	s := e.Name + ": " + e.Text
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d:%d: %s", e.Name, e.Line, e.Column, e.Text)
	}
	if e.Source != "" {
		s += "\n" + e.Source
	}
	return s
}

// document is the parsed YAML of a file.
type document struct {
	name    string
	root    ast.Node
	anchors map[string]ast.Node
}

func parse(name string, text []byte) (_ *document, err error) {
	defer recovered(name, &err)
	if len(text) > MaxSize {
		return nil, &Error{Name: name, Text: fmt.Sprintf("%d bytes: a lab file has %d at most", len(text), MaxSize)}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(line) > MaxLine {
			return nil, &Error{Name: name, Line: i + 1, Column: MaxLine,
				Text: fmt.Sprintf("a line of %d bytes: a lab file's have %d at most", len(line), MaxLine)}
		}
	}
	tokens := lexer.Tokenize(string(text))
	if err := simple(name, tokens); err != nil {
		return nil, err
	}
	f, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, syntax(name, err)
	}
	d := &document{name: name, anchors: make(map[string]ast.Node)}
	for _, doc := range f.Docs {
		if doc.Body == nil {
			continue
		}
		if d.root != nil {
			return nil, d.fail(doc.Body.GetToken(), "a second document: a lab file is one")
		}
		d.root = doc.Body
	}
	if d.root == nil {
		return nil, &Error{Name: name, Text: "it is empty: a lab file has guests, as `vnic lab show pair` prints"}
	}
	ast.Walk(visit(func(n ast.Node) {
		if a, ok := n.(*ast.AnchorNode); ok {
			d.anchors[a.Name.GetToken().Value] = a.Value
		}
	}), d.root)
	if n := d.count(d.root, 0); n > MaxNodes {
		return nil, &Error{Name: name,
			Text: fmt.Sprintf("with all its aliases it has more than %d parts, or is part of itself", MaxNodes)}
	}
	return d, nil
}

// recovered converts a panic of the YAML library to an error.
func recovered(name string, err *error) {
	if r := recover(); r != nil {
		*err = &Error{Name: name, Text: fmt.Sprintf("the YAML library fails on it: %v", r)}
	}
}

// simple refuses tags, more than MaxTokens tokens, and values nested more than maxDepth deep by brackets, braces
// and dashes in a row, as the YAML parser would need too much time. It does not count nesting by indentation.
func simple(name string, tokens token.Tokens) error {
	if len(tokens) > MaxTokens {
		return syntax(name, &yaml.SyntaxError{Token: tokens[MaxTokens],
			Message: fmt.Sprintf("more than %d words and signs: a lab file has no more", MaxTokens)})
	}
	depth, dashes := 0, 0
	for _, t := range tokens {
		dashes++
		switch t.Type {
		case token.TagType:
			return syntax(name, &yaml.SyntaxError{Token: t, Message: "a tag, " + t.Value + ": a lab file has none"})
		case token.SequenceEntryType:
		case token.MappingStartType, token.SequenceStartType:
			depth, dashes = depth+1, 0
		case token.MappingEndType, token.SequenceEndType:
			depth, dashes = depth-1, 0
		default:
			dashes = 0
		}
		if depth+dashes > maxDepth {
			return syntax(name, &yaml.SyntaxError{Token: t, Message: fmt.Sprintf("nested more than %d deep", maxDepth)})
		}
	}
	return nil
}

// visit is called by ast.Walk for each node, parents first; Walk does not follow aliases.
type visit func(ast.Node)

func (f visit) Visit(n ast.Node) ast.Visitor {
	f(n)
	return f
}

// maxDepth is the maximum nesting of YAML values.
const maxDepth = 32

// count returns the number of nodes from n down, without mappings' keys and with aliases expanded; n is depth
// levels below the root. If there are more than MaxNodes, or if one is more than maxDepth levels below the root,
// count returns MaxNodes + 1.
func (d *document) count(n ast.Node, depth int) int {
	if depth > maxDepth {
		return MaxNodes + 1
	}
	sum := 1
	for _, c := range d.below(n) {
		if sum += d.count(c, depth+1); sum > MaxNodes {
			return MaxNodes + 1
		}
	}
	return sum
}

// below returns a node's children without mappings' keys; an alias has its anchor's value, if any, as its child.
func (d *document) below(n ast.Node) (list []ast.Node) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			list = append(list, v.Value)
		}
	case *ast.MappingValueNode:
		list = append(list, n.Value)
	case *ast.SequenceNode:
		list = n.Values
	case *ast.AnchorNode:
		list = append(list, n.Value)
	case *ast.AliasNode:
		if v := d.anchors[n.Value.GetToken().Value]; v != nil {
			list = append(list, v)
		}
	}
	return list
}

// solid follows aliases and anchors from n to a value; nil: there is none.
func (d *document) solid(n ast.Node) ast.Node {
	for range maxDepth {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			n = d.anchors[v.Value.GetToken().Value]
		default:
			return n
		}
	}
	return nil
}

// entries returns the entries of a mapping, then the entries of mappings that it merges (<<).
func (d *document) entries(n ast.Node) (list []*ast.MappingValueNode) {
	switch n := d.solid(n).(type) {
	case *ast.MappingNode:
		list = n.Values
	case *ast.MappingValueNode:
		list = []*ast.MappingValueNode{n}
	}
	for _, v := range list {
		if v.Key.IsMergeKey() {
			list = append(list[:len(list):len(list)], d.entries(v.Value)...)
		}
	}
	return list
}

// plain refuses keys that are neither words nor whole numbers, and merges of anything but one mapping: the
// YAML library reads some of these unexpectedly.
func (d *document) plain() (err error) {
	ast.Walk(visit(func(n ast.Node) {
		v, ok := n.(*ast.MappingValueNode)
		if !ok || err != nil {
			return
		}
		switch v.Key.(type) {
		case *ast.StringNode, *ast.IntegerNode:
		case *ast.MergeKeyNode:
			switch d.solid(v.Value).(type) {
			case *ast.MappingNode, *ast.MappingValueNode:
			default:
				err = d.fail(v.Key.GetToken(), "<< merges one mapping")
			}
		default:
			err = d.fail(v.Key.GetToken(), "a key of a lab file is a word")
		}
	}), d.root)
	return err
}

// keys returns the keys of the entries of a mapping, in their order, without merge keys.
func (d *document) keys(n ast.Node) (list []string) {
	for _, v := range d.entries(n) {
		if !v.Key.IsMergeKey() {
			list = append(list, v.Key.GetToken().Value)
		}
	}
	return list
}

// node returns the value at a path of keys and indexes, or at its longest beginning that exists.
func (d *document) node(path ...any) ast.Node {
	n := d.root
	for _, step := range path {
		next := ast.Node(nil)
		switch step := step.(type) {
		case string:
			for _, v := range d.entries(n) {
				if v.Key.GetToken().Value == step {
					next = v.Value
					break
				}
			}
		case int:
			if s, ok := d.solid(n).(*ast.SequenceNode); ok && step < len(s.Values) {
				next = s.Values[step]
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return n
}

func (d *document) wrong(path []any, format string, args ...any) error {
	n := d.solid(d.node(path...))
	if n == nil {
		n = d.root
	}
	t := n.GetToken()
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		t = m.Values[0].Key.GetToken() // a mapping's own token is a colon or a brace
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		t = m.Key.GetToken()
	}
	return d.fail(t, fmt.Sprintf(format, args...))
}

func (d *document) fail(t *token.Token, text string) error {
	return syntax(d.name, &yaml.SyntaxError{Token: t, Message: text})
}

// syntax converts an error of the YAML library to an *Error.
func syntax(name string, err error) error {
	e := &Error{Name: name, Text: err.Error()}
	var placed yaml.Error
	if !errors.As(err, &placed) {
		return e
	}
	if e.Text = placed.GetMessage(); strings.Contains(e.Text, "'\t' that cannot start any token") {
		e.Text = "a tab: YAML is indented with spaces"
	}
	if t := placed.GetToken(); t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
		_, e.Source, _ = strings.Cut(strings.TrimRight(yaml.FormatError(err, false, true), "\n "), "\n")
	}
	return e
}
