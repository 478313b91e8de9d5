package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// record returns the path of the record of an instance's volume or filesystem, below the
// directory of all storage.
func (i *instance) record(o object) string { return i.records(o) + i.objects[o] + ".json" }

func (i *instance) records(o object) string {
	if o == filesystem && i.onVolume() {
		return "managed/records/"
	}
	if i.provider == driverName {
		return fmt.Sprintf("%s/%ss/records/", driverName, o)
	}
	return i.pool + "/records/"
}

// objects checks that no number of a volume or filesystem was ever another instance's, and
// determines the names on disk, which begin with the number.
func (p *problems) objects() error {
	for name, row := range p.status {
		i, ok := p.soak.all[name]
		if !ok {
			continue // a problem that agents reports
		}
		for o, id := range map[object]string{volume: row.Volume, filesystem: row.Filesystem} {
			if id == "" {
				continue
			}
			number := fmt.Sprintf("%s-%s", o, strings.ReplaceAll(id, "/", "-"))
			if first := p.numbers[number]; first != nil && first != i {
				return fmt.Errorf("%s is that of %s, and was that of %s", number, i.name, first.name)
			}
			p.numbers[number] = i
			if i.objects[o] != "" {
				continue
			}
			found, err := filepath.Glob(filepath.Join(p.boundStorage(), i.records(o), number+"*.json"))
			if err != nil {
				return err
			}
			for _, path := range found {
				base := strings.TrimSuffix(filepath.Base(path), ".json")
				if base == number || strings.HasPrefix(base, number+"-") {
					i.objects[o] = base
				}
			}
		}
	}
	return nil
}
