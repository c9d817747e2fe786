package expect

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed suites/*.yaml models/*.yaml
var files embed.FS

// MaxSize bounds a file, in bytes.
const MaxSize = 1 << 20

// ErrUnknown means that there is no suite for a kernel, or no expectations for a device model with it.
var ErrUnknown = errors.New("nothing is written down")

// SuiteOf returns the suite for a kernel's release. Without one the error wraps ErrUnknown.
func SuiteOf(release string) (*Suite, error) {
	name := "suites/" + Series(release) + ".yaml"
	text, err := read(name, "the tests of kernel "+release)
	if err != nil {
		return nil, err
	}
	return ParseSuite(name, text)
}

// Of returns the expectations for a device model with a kernel's release. Without any the error wraps ErrUnknown.
func Of(model, release string) (*Expectations, error) {
	suite, err := SuiteOf(release)
	if err != nil {
		return nil, err
	}
	name := "models/" + model + "-" + suite.Kernel + ".yaml"
	text, err := read(name, model+" with kernel "+suite.Kernel)
	if err != nil {
		return nil, err
	}
	return Parse(name, text, suite, nil)
}

// read returns an embedded file. If there is none of this name, the error wraps ErrUnknown, and ends with about.
func read(name, about string) ([]byte, error) {
	text, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, fmt.Errorf("%w of %s", ErrUnknown, about)
	}
	return text, err
}

// ParseSuite parses and checks a suite. name is the file's, for errors.
func ParseSuite(name string, text []byte) (*Suite, error) {
	s := new(Suite)
	if err := decode(name, text, s); err != nil {
		return nil, err
	}
	return s, in(name, errors.Join(s.check()...))
}

// Parse parses and checks a file of expectations. name is the file's, for errors. Evidence of class Kernel must be
// among headings, the headings of docs/found.md; nil: not checked.
func Parse(name string, text []byte, suite *Suite, headings []string) (*Expectations, error) {
	x := &Expectations{File: new(File), Suite: suite}
	if err := decode(name, text, x.File); err != nil {
		return nil, err
	}
	return x, in(name, x.check(headings))
}

func decode(name string, text []byte, to any) error {
	if len(text) > MaxSize {
		return fmt.Errorf("%s: %d bytes: it may have %d", name, len(text), MaxSize)
	}
	if err := yaml.UnmarshalWithOptions(text, to, yaml.Strict()); err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	return nil
}

// in puts a file's name before each line of an error.
func in(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, errors.New(strings.ReplaceAll(err.Error(), "\n", "\n"+name+": ")))
}
