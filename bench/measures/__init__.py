"""What is asked of the subjects: one module a group, each with `measure(lab)`, in the order of the table."""
