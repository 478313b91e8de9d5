// Package quota limits the size of a directory's content with project quotas, which ext4 and
// xfs have when they are mounted with the option prjquota.
//
// Each file has a project, which is a number. A directory can pass its project on to what is
// made in it. All other files have project 0. The filesystem counts the space that the files
// of a project use, and refuses to give them more than the project's limit. On ext4 this does
// not apply to a process with CAP_SYS_RESOURCE. In a directory that passes its project on,
// statfs (df) reports the limit as the size of the filesystem.
//
// The package neither reads nor writes the names that a machine's administrator gives to
// projects, in /etc/projid and /etc/projects.
package quota
