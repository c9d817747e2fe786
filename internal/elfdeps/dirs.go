package elfdeps

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
)

// libDirs returns the possible values of $LIB, which differ between distributions.
func (o *object) libDirs() []string {
	switch {
	case o.machine == elf.EM_X86_64:
		return []string{"lib/x86_64-linux-gnu", "lib64", "lib"}
	case o.class == elf.ELFCLASS64:
		return []string{"lib64", "lib"}
	}
	return []string{"lib/i386-linux-gnu", "lib"}
}

func platform(m elf.Machine) string {
	if m == elf.EM_X86_64 {
		return "x86_64"
	}
	return "i686"
}

// systemDirs returns the directories that are searched for every program: the directories of the
// machine's configuration, and the defaults of the dynamic linker.
func (f Finder) systemDirs(o *object) (dirs []string) {
	if name, ok := strings.CutPrefix(filepath.Base(o.interp), "ld-musl-"); ok { // musl's ldso: /etc/ld-musl-ARCH.path
		b, err := os.ReadFile(f.host("/etc/ld-musl-" + strings.TrimSuffix(name, ".so.1") + ".path"))
		if err != nil {
			return []string{"/lib", "/usr/local/lib", "/usr/lib"}
		}
		return strings.FieldsFunc(string(b), func(r rune) bool { return r == ':' || r == '\n' })
	}
	dirs = f.conf("/etc/ld.so.conf", 0)
	for _, lib := range o.libDirs() {
		dirs = append(dirs, "/"+lib, "/usr/"+lib)
	}
	return dirs
}

// maxInclude is how deeply configuration files may include others.
const maxInclude = 8

// conf reads the directories of a file in the format of /etc/ld.so.conf (ldconfig(8)).
func (f Finder) conf(path string, depth int) (dirs []string) {
	b, err := os.ReadFile(f.host(path))
	if err != nil || depth > maxInclude {
		return nil
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "include":
			for _, pattern := range words[1:] {
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(filepath.Dir(path), pattern)
				}
				files, _ := filepath.Glob(f.host(pattern))
				for _, file := range files {
					rel, err := filepath.Rel(f.host("/"), file)
					if err == nil {
						dirs = append(dirs, f.conf("/"+rel, depth+1)...)
					}
				}
			}
		case filepath.IsAbs(words[0]):
			dirs = append(dirs, filepath.Clean(words[0]))
		}
	}
	return dirs
}
