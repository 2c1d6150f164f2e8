"""The dialect `kernels`: graph passes that give products, tables and attention to the operators of kernels/."""
