package labfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Parse parses a lab file; name is for messages. An error is an *Error.
func Parse(name string, text []byte) (*Lab, error) {
	d, err := parse(name, text)
	if err != nil {
		return nil, err
	}
	f, err := d.decode(text)
	if err != nil {
		return nil, err
	}
	b := builder{document: d, file: f, out: &Lab{Seed: f.Seed}, given: make(map[string]bool)}
	if err := b.build(); err != nil {
		return nil, err
	}
	return b.out, nil
}

func (d *document) decode(text []byte) (f *File, err error) {
	defer recovered(d.name, &err)
	f = new(File)
	dec := yaml.NewDecoder(bytes.NewReader(text), yaml.DisallowUnknownField(), yaml.AllowDuplicateMapKey())
	if err := dec.Decode(f); err != nil {
		return nil, d.undecoded(err)
	}
	return f, nil
}

func (d *document) undecoded(err error) error {
	bad := syntax(d.name, err).(*Error)
	if unknown := (*yaml.UnknownFieldError)(nil); errors.As(err, &unknown) {
		key := unknown.Token.Value
		bad.Text = fmt.Sprintf("there is no %q here", key)
		if like := alike(key, words()); like != "" {
			bad.Text += fmt.Sprintf(": %s is meant?", like)
		}
	}
	want := ""
	if other := (*yaml.TypeError)(nil); errors.As(err, &other) {
		want = kindOf(other.DstType)
	}
	if other := (*yaml.OverflowError)(nil); errors.As(err, &other) {
		want = kindOf(other.DstType)
	}
	if other := (*yaml.UnexpectedNodeTypeError)(nil); errors.As(err, &other) {
		switch other.Expected {
		case ast.MappingType:
			want = "a mapping (as guests: {a: ...}: names without a dash before them)"
		case ast.SequenceType:
			want = "a list (as nics: [{name: nic0}]: each begins with a dash, or all are in brackets)"
		}
	}
	if want != "" {
		bad.Text = "this is not " + want + ", as it has to be"
	}
	return bad
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64, reflect.Uint32:
		return "a whole number from 0"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	}
	return "a word"
}

func words() []string {
	seen := make(map[string]bool)
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Slice, reflect.Map, reflect.Pointer:
			walk(t.Elem())
		case reflect.Struct:
			for i := range t.NumField() {
				if word, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); word != "" {
					seen[word] = true
				}
				walk(t.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[File]())
	walk(linkType)
	return slices.Sorted(maps.Keys(seen))
}

// alike returns the word that is most similar to s; "": none is similar.
func alike(s string, words []string) (best string) {
	least := min(max(2, len(s)/3)+1, len(s)) // at least one letter must be right
	for _, w := range words {
		if n := levenshtein.ComputeDistance(s, w); n < least {
			best, least = w, n
		}
	}
	return best
}
