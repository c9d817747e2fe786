package labfile

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

//go:embed presets/*.yaml
var presets embed.FS

// Presets returns the names of the embedded lab files.
func Presets() (names []string) {
	list, _ := presets.ReadDir("presets") // cannot fail: the directory is embedded
	for _, e := range list {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Load parses the preset with this name, or else the file; "-" is standard input. A name with a slash is a file's.
func Load(name string, stdin io.Reader) (*Lab, error) {
	text, err := read(name, stdin)
	if err != nil {
		return nil, err
	}
	return Parse(name, text)
}

func read(name string, stdin io.Reader) ([]byte, error) {
	if b, err := presets.ReadFile("presets/" + name + ".yaml"); err == nil && !strings.Contains(name, "/") {
		return b, nil
	}
	r := stdin
	if name != "-" {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			fix := "presets are " + strings.Join(Presets(), ", ")
			if like := alike(name, Presets()); like != "" {
				fix = "the preset " + like + " is meant?"
			}
			return nil, &Error{Name: name, Text: "no such lab file, nor preset: " + fix}
		}
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}
