package state

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// CheckStore returns the inconsistencies of the store: unreadable and unknown records,
// impossible instances, and index entries, histories and counts that do not match the
// instances.
func CheckStore(store kv.Store) (problems []string) {
	index := make(map[string]indexEntry)
	existing, gone := make(map[string]bool), make(map[string]bool) // names of instances
	counts := make(map[string]int)
	found := make(map[string]indexEntry)
	bearers, wantBearers := make(map[string]bearersRecord), make(map[string]bearersRecord)
	named, wantNamed := make(map[string]machineTag), make(map[string]machineTag)
	snapshots, wantSnapshots := make(map[string]string), make(map[string]string)
	tasks, wantTasks := make(map[string]bool), make(map[string]bool) // whether each is open
	deletions, wantDeletions := make(map[string]string), make(map[string]string)
	claims, claimed := make(map[string]string), make(map[string]string) // claims, by their storage
	retries, retried := make(map[string]bool), []string(nil)
	err := store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, data []byte) error {
			switch {
			case strings.HasPrefix(key, storagePrefix):
				i, err := decodeAt[instance](key, data)
				if err != nil {
					return err
				}
				for _, broken := range i.violations() {
					problems = append(problems, key+": "+broken)
				}
				for _, keyed := range i.index(nil, key[len(storagePrefix):]) {
					if _, taken := index[keyed.key()]; taken {
						problems = append(problems, key+": another instance has "+keyed.key())
					}
					index[keyed.key()] = keyed.entry
					retries[keyed.retryKey()], retries[keyed.formatKey()] = true, true
				}
				existing[key[len(storagePrefix):]] = true
				if i.Claim != "" && !i.Retained {
					claimed[key[len(storagePrefix):]] = i.Claim
				}
				if !i.Uncounted {
					counts[i.Pool]++
				}
			case strings.HasPrefix(key, "scope/"), strings.HasPrefix(key, "imported/"), strings.HasPrefix(key, "given/"),
				strings.HasPrefix(key, "mount-point/"), strings.HasPrefix(key, "unmade/"),
				strings.HasPrefix(key, "asker/"), strings.HasPrefix(key, "asked/"):
				entry, err := decodeAt[indexEntry](key, data)
				if err != nil {
					return err
				}
				found[key] = entry
			case strings.HasPrefix(key, claimPrefix):
				record, err := decodeAt[claimRecord](key, data)
				name := key[len(claimPrefix):]
				if i, ok := read[instance](&reader{kv: snapshot}, storageKey(record.Storage)); ok && i.isBound(name) {
					claims[record.Storage] = name
				}
				return err
			case strings.HasPrefix(key, goneKey("")):
				gone[key[len(gonePrefix):]] = true
				_, err := decodeAt[time.Time](key, data)
				return err
			case strings.HasPrefix(key, historyKey("")):
				// Of an older version.
			case strings.HasPrefix(key, eventsPrefix), strings.HasPrefix(key, poolPrefix), key == SchemaKey:
				// Checked below, or by Open.
			case key == authorityKey:
				_, err := decodeAt[authorityRecord](key, data)
				return err
			case key == identityKey:
				_, err := decodeAt[identity](key, data)
				return err
			case key == fingerprintKey:
				_, err := decodeAt[Fingerprint](key, data)
				return err
			case strings.HasPrefix(key, importPrefix):
				_, err := decodeAt[importNote](key, data)
				return err
			case key == copyKey, key == unstampedKey, key == addedKey:
				_, err := decodeAt[copyRecord](key, data)
				return err
			case strings.HasPrefix(key, "machine/"):
				record, err := decodeAt[machineRecord](key, data)
				if record.Name != "" {
					wantNamed[record.Name] = machineTag(strings.Split(key, "/")[1])
				}
				return err
			case strings.HasPrefix(key, "named/"):
				at, err := decodeAt[machineTag](key, data)
				named[key[len("named/"):]] = at
				return err
			case strings.HasPrefix(key, snapshotPrefix):
				record, err := decodeAt[snapshotRecord](key, data)
				wantSnapshots[snapshotUUIDKey(record.UUID)] = key[len(snapshotPrefix):]
				return err
			case strings.HasPrefix(key, snapshotUUIDKey("")):
				entry, err := decodeAt[indexEntry](key, data)
				snapshots[key] = entry.Storage
				return err
			case strings.HasPrefix(key, tokenPrefix):
				_, err := decodeAt[tokenRecord](key, data)
				return err
			case strings.HasPrefix(key, userPrefix):
				_, err := decodeAt[userRecord](key, data)
				return err
			case strings.HasPrefix(key, "task/"):
				record, err := decodeAt[taskRecord](key, data)
				tasks[key] = record.Ended.IsZero()
				if record.Ended.IsZero() && record.Deletes != "" {
					wantDeletions[deletionKey(record.Deletes)] = lastComponent(key)
				}
				return err
			case strings.HasPrefix(key, tasksPrefix):
				list, err := decodeAt[tasksRecord](key, data)
				for _, id := range list.Open {
					wantTasks[taskKey(machineTag(key[len(tasksPrefix):]), id)] = true
				}
				for _, id := range list.Ended {
					wantTasks[taskKey(machineTag(key[len(tasksPrefix):]), id)] = false
				}
				return err
			case strings.HasPrefix(key, "deletion/"):
				id, err := decodeAt[string](key, data)
				deletions[key] = id
				return err
			case strings.HasPrefix(key, "session/"):
				_, err := decodeAt[sessionRecord](key, data)
				return err
			case strings.HasPrefix(key, "space/"):
				_, err := decodeAt[spaceRecord](key, data)
				return err
			case strings.HasPrefix(key, "presence/"):
				_, err := decodeAt[Presence](key, data)
				return err
			case strings.HasPrefix(key, environPrefix):
				_, err := decodeAt[environRecord](key, data)
				return err
			case strings.HasPrefix(key, "retry/"), strings.HasPrefix(key, "format/"):
				retried = append(retried, key)
				_, err := decodeAt[counter](key, data)
				return err
			case strings.HasPrefix(key, "sequence/"), strings.HasPrefix(key, blockDevicesPrefix):
				_, err := decodeAt[counter](key, data)
				return err
			case strings.HasPrefix(key, "device/"):
				record, err := decodeAt[devicesRecord](key, data)
				machine, name, _ := strings.Cut(key[len("device/"):], "/")
				for _, d := range record {
					if d.DeviceName != name {
						problems = append(problems, key+": there is a device "+d.DeviceName)
					}
				}
				for _, key := range record.bearersKeys(machineTag(machine)) {
					wantBearers[key] = append(wantBearers[key], name)
				}
				return err
			case strings.HasPrefix(key, "bearers/"):
				names, err := decodeAt[bearersRecord](key, data)
				bearers[key] = names
				return err
			default:
				problems = append(problems, "nothing reads "+key)
			}
			return nil
		})
	})
	if err != nil {
		return []string{err.Error()}
	}
	for _, key := range retried {
		if !retries[key] {
			problems = append(problems, "no instance belongs to "+key)
		}
	}
	if !reflect.DeepEqual(snapshots, wantSnapshots) {
		problems = append(problems, fmt.Sprintf("the snapshots by UUID are\n\t%v\nwant\n\t%v", snapshots, wantSnapshots))
	}
	if !reflect.DeepEqual(claims, claimed) {
		problems = append(problems, fmt.Sprintf("the storage of claims is\n\t%v\nwant\n\t%v", claimed, claims))
	}
	if !reflect.DeepEqual(index, found) {
		problems = append(problems, fmt.Sprintf("the index is\n\t%v\nwant\n\t%v", found, index))
	}
	if !reflect.DeepEqual(named, wantNamed) {
		problems = append(problems, fmt.Sprintf("the index of names of machines is\n\t%v\nwant\n\t%v", named, wantNamed))
	}
	if !reflect.DeepEqual(tasks, wantTasks) {
		problems = append(problems, fmt.Sprintf("the lists of tasks are\n\t%v\nwant\n\t%v", wantTasks, tasks))
	}
	if !reflect.DeepEqual(deletions, wantDeletions) {
		problems = append(problems, fmt.Sprintf("the deletions are\n\t%v\nwant\n\t%v", deletions, wantDeletions))
	}
	if !reflect.DeepEqual(bearers, wantBearers) {
		problems = append(problems, fmt.Sprintf("the index of block devices is\n\t%v\nwant\n\t%v", bearers, wantBearers))
	}
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		err := snapshot.Scan(eventsPrefix, func(key string, data []byte) error {
			record, err := decodeAt[eventsRecord](key, data)
			if err != nil {
				return err
			}
			name, length := key[len(eventsPrefix):], len(record.Events)
			if existing[name] == gone[name] || length == 0 || length > maxEvents || record.Last < uint64(length) {
				problems = append(problems, fmt.Sprintf("%s: %d events, the last is %d; the storage exists: %t, and is gone: %t", key, length, record.Last, existing[name], gone[name]))
			}
			delete(gone, name)
			return nil
		})
		if err != nil {
			return err
		}
		return snapshot.Scan(poolPrefix, func(key string, data []byte) error {
			pool, err := decodeAt[poolRecord](key, data)
			if want := counts[key[len(poolPrefix):]]; int(pool.Instances) != want {
				problems = append(problems, fmt.Sprintf("%s: %d instances, want %d", key, pool.Instances, want))
			}
			return err
		})
	})
	if err != nil {
		problems = append(problems, err.Error())
	}
	for name := range gone {
		problems = append(problems, eventsKey(name)+" is missing")
	}
	return problems
}

// violations returns the rules of life that the record breaks.
func (i *instance) violations() (broken []string) {
	never := func(is bool, format string, args ...any) {
		if is {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	v, f := i.Volume, i.Filesystem
	never(i.Size == 0, "no size is wanted")
	never(i.Life != life.Alive && i.Life != life.Dying, "the instance is %q", i.Life)
	never(i.Kind != storage.StorageKindFilesystem.String() && f != nil, "kind %q has a filesystem", i.Kind)
	for _, e := range i.entities() {
		backing := e == v && f != nil
		never(rank(e.Life) == 0, "%s is %q", e.Tag, e.Life)
		leaving := e == f && i.Moved != nil && e.Life == life.Dead
		never((i.Life == life.Alive) != (e.Life == life.Alive) && !leaving, "%s is %s in an instance that is %s", e.Tag, e.Life, i.Life)
		never(e.Life == life.Dying && e.Attachment == nil && !backing, "%s is dying and has nothing to wait for", e.Tag)
		never(e.Life == life.Dead && (e.Attachment != nil || backing), "%s is dead while in use", e.Tag)
		never(!slices.Contains(statusPriority, e.Status.Status), "%s has status %q", e.Tag, e.Status.Status)
		never(e.Info != nil && e.Info.ID == "", "%s is provisioned without an ID", e.Tag)
		a := e.Attachment
		if a == nil {
			continue
		}
		never(a.Life != life.Alive && a.Life != life.Dying, "the %s is %q", e.describeAttachment(), a.Life)
		never(a.Info != nil && e.Info == nil, "%s is attached before it is made", e.Tag)
		never(a.Plan != nil && (e != v || a.Life != life.Alive), "the %s goes before its plan", e.describeAttachment())
		never(a.Plan != nil && a.Plan.Life != life.Alive && a.Plan.Life != life.Dying, "a plan for %s is neither alive nor dying", e.Tag)
		never(e.Tag.scope() != environScope && e.Tag.scope() != string(a.Machine), "%s has left its machine", e.Tag)
	}
	top := i.top()
	never(i.Life != life.Alive && top.Attachment != nil && !top.Attachment.detaching(), "%s is not being detached", top.Tag)
	if v != nil && f != nil {
		never(f.Attachment != nil && (v.Attachment == nil || v.Attachment.detaching()), "%s is detached under its filesystem", v.Tag)
		never(f.Attachment != nil && v.Attachment != nil && f.Attachment.Machine != v.Attachment.Machine, "%s and %s are on different machines", v.Tag, f.Tag)
		making := f.beingMade()
		never(f.Attachment == nil && v.Attachment != nil && !v.Attachment.detaching() && !making, "%s is not being detached", v.Tag)
		never(making && (v.Attachment == nil || v.Attachment.detaching()), "%s is detached under a filesystem that is being made", v.Tag)
	}
	return broken
}

// MatchDevice finds the block device of a volume as [Accessor.VolumeBlockDevices] does.
func (st *State) MatchDevice(machine names.MachineTag, v storage.VolumeInfo, a storage.VolumeAttachmentInfo, plan storage.BlockDevice) (device storage.BlockDevice, ok bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		device, ok = storage.MatchIndexed(deviceIndex{r, newMachineTag(machine)}, v, a, plan)
		return nil
	})
	return device, ok, err
}

// Unseal is the inverse of Seal. It reports whether the record is as it was sealed.
func Unseal(key string, data []byte) (record []byte, ok bool) { return unseal(key, data) }

// Seal returns a record as it is kept at key.
func Seal(key string, record []byte) []byte { return seal(key, record) }

// CheckChange returns the differences between two contents of a store that no single change
// can make.
func CheckChange(before, after map[string]string) (problems []string) {
	old, now, fenced := instances(before), instances(after), fencedMachines(after)
	for name, i := range now {
		was := old[name]
		if was == nil {
			was = &instance{}
		}
		for _, e := range i.entities() {
			switch own := was.entity(e.Tag); {
			case own != nil:
				for _, broken := range e.violationsSince(own, fenced) {
					problems = append(problems, fmt.Sprintf("%s: %s %s", name, e.Tag, broken))
				}
			case len(was.entities()) > 0 && (i.Moved == nil || e != i.Filesystem):
				problems = append(problems, fmt.Sprintf("%s: got %s when it was there already", name, e.Tag))
			case isPrepared(before, e):
				// Its number was handed out when the import was prepared.
			case number(e) < next(before, e.Tag) || number(e) >= next(after, e.Tag):
				problems = append(problems, fmt.Sprintf("%s: there may be another %s", name, e.Tag))
			}
		}
	}
	for name, was := range old {
		i := now[name]
		if i == nil {
			i = &instance{}
		}
		for _, e := range was.entities() {
			left := i.Moved != nil && e == was.Filesystem && e.Attachment == nil
			if i.entity(e.Tag) == nil && e.Life != life.Dead && !left {
				problems = append(problems, fmt.Sprintf("%s: %s was %s and is gone", name, e.Tag, e.Life))
			}
		}
	}
	return problems
}

// violationsSince returns the rules that a change of an entity broke.
func (e *entity) violationsSince(was *entity, fenced map[machineTag]bool) (broken []string) {
	never := func(is bool, what string) {
		if is {
			broken = append(broken, what)
		}
	}
	never(rank(e.Life) < rank(was.Life), fmt.Sprintf("went from %s to %s", was.Life, e.Life))
	never(e.Imported != was.Imported, "was imported afterwards")
	never(e.UUID != was.UUID, "has another UUID")
	if was.Info != nil {
		never(e.Info == nil || e.Info.ID != was.Info.ID, "is provisioned as something else")
		never(e.Info != nil && e.Info.Size < was.Info.Size, "has become smaller")
	}
	a, had := e.Attachment, was.Attachment
	switch {
	case had == nil:
		never(a != nil && (a.Info != nil || a.Plan != nil || a.detaching() && !a.Attempted), "has a new attachment that is not in its first state")
		return broken
	case a == nil:
		never(had.Life == life.Alive && !fenced[had.Machine], "lost an attachment that was alive")
		return broken
	}
	never(a.Machine != had.Machine, "went from machine to machine")
	never(rank(a.Life) < rank(had.Life) || had.detaching() && !a.detaching(), "was being detached and is attached again")
	never(had.Info != nil && a.Info == nil, "forgot what is attached")
	if had.Plan != nil {
		never(a.Plan == nil && had.Plan.Life == life.Alive && !fenced[had.Machine], "lost a plan that was alive")
		never(a.Plan != nil && rank(a.Plan.Life) < rank(had.Plan.Life), "has a plan whose life went back")
	}
	never(had.detaching() && had.Plan == nil && a.Plan != nil, "got a plan while it was being detached")
	return broken
}

func fencedMachines(contents map[string]string) map[machineTag]bool {
	fenced := make(map[machineTag]bool)
	for key, data := range contents {
		if strings.HasPrefix(key, "machine/") {
			record, _ := decodeAt[machineRecord](key, []byte(data))
			fenced[machineTag(strings.Split(key, "/")[1])] = record.Fenced != nil
		}
	}
	return fenced
}

func instances(contents map[string]string) map[string]*instance {
	all := make(map[string]*instance)
	for key, data := range contents {
		if name, ok := strings.CutPrefix(key, storagePrefix); ok {
			i, _ := decodeAt[instance](key, []byte(data)) // CheckStore reports those that cannot be read
			all[name] = &i
		}
	}
	return all
}

// isPrepared reports whether the entity is of an import that was prepared.
func isPrepared(contents map[string]string, e *entity) bool {
	for key, data := range contents {
		if strings.HasPrefix(key, importPrefix) {
			note, _ := decodeAt[importNote](key, []byte(data)) // CheckStore reports those that cannot be read
			if note.Tag == e.Tag && note.UUID == e.UUID {
				return true
			}
		}
	}
	return false
}

func number(e *entity) counter {
	n, _ := e.Tag.number() // it has been checked
	return counter(n)
}

// next returns the number that the next volume, or filesystem, has in its tag.
func next(contents map[string]string, tag entityTag) counter {
	key := "sequence/" + tag.kind()
	n, _ := decodeAt[counter](key, []byte(contents[key]))
	return n
}

func rank(l life.Value) int {
	return map[life.Value]int{life.Alive: 1, life.Dying: 2, life.Dead: 3}[l]
}

// Outranks reports whether a status outranks another.
func Outranks(s, other StatusInfo) bool { return s.outranks(other) }
